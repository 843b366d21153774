"""The whole spectrum of the Hessian at the end of training: both ends, trace, density, and each layer's alpha_i."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from studies._checkpoints import RATE_NOTE, SIDE_BY_SIDE, measured_cells

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scala_lab.study.profiles import Profile
    from scala_lab.training.run_dir import RunResult


def measure(runs: Sequence[RunResult], **settings: Any) -> dict[str, Any]:
    """Look at one trained checkpoint; see `scala_lab.curvature.checkpoint.spectrum`."""
    from scala_lab.curvature.checkpoint import spectrum

    return spectrum(runs, **settings)


def cells(profile: Profile) -> list[Cell]:
    """Small batch, large batch and ScaLA with the first seed."""
    plan = profile.curvature
    settings = {"samples": plan.samples, "top_k": 1, "tol": plan.tol, "threads": plan.threads}
    return measured_cells(profile, measure, lambda seed: settings, SIDE_BY_SIDE, profile.seeds[:1])


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Tables of the whole and of the layers, densities and bars side by side."""
    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    plan, task = profile.curvature, done["task"].iloc[0]
    layers = layer_rows(done)
    notes = [
        f"Hessian of the mean training loss over {plan.samples} rows of {task}, seed {profile.seeds[0]}.",
        "Trace by random probes with the top eigenvectors taken out; its error is one standard error.",
        RATE_NOTE,
    ]
    kappas = ", ".join(f"{run['method']} {run['kappa_alpha']:.3g}" for run in done.to_dict("records"))
    tops = ", ".join(f"{run['method']} {run['eigenvalues'][0]:.3g}" for run in done.to_dict("records"))
    return Findings(
        tables=[
            Tabulation("", spectrum_table(done), "Ends, trace and layers' spread of the spectrum.", notes),
            Tabulation(
                "layers",
                layers.pivot_table("eigenvalue", "layer", "checkpoint", sort=False)[list(done["method"])],
                "alpha_i: top eigenvalue of each layer's block of the Hessian.",
                ["Local values at the checkpoint; the theorem's alpha_i bound the curvature everywhere."],
            ),
        ],
        figures=[
            Drawing("", _densities(done), f"Spectral density of the Hessian on {task}."),
            Drawing("layers", _layer_bars(layers), f"alpha_i of each layer on {task}, and kappa_alpha."),
        ],
        found=f"Top eigenvalue: {tops}. kappa_alpha, largest over smallest layer: {kappas}.",
    )


def spectrum_table(done: pd.DataFrame) -> pd.DataFrame:
    """One row per method."""
    import pandas as pd

    return pd.DataFrame(
        {
            "method": run["method"],
            "B": run["batch_size"],
            "top eigenvalues": ", ".join(f"{value:.4g}" for value in run["eigenvalues"]),
            "smallest eigenvalue": run["smallest"],
            "trace": run["trace"],
            "its error": run["trace_error"],
            "top / trace": run["eigenvalues"][0] / run["trace"],
            "kappa_alpha": run["kappa_alpha"],
            "largest residual": max(*run["residuals"], run["smallest_residual"], *run["layer_residuals"]),
            "converged": bool(run["converged"]),
            "dimensions": run["touched_size"],
            "products": run["hvps"],
        }
        for run in done.to_dict("records")
    )


def layer_rows(done: pd.DataFrame) -> pd.DataFrame:
    """One row per method and layer."""
    import pandas as pd

    return pd.DataFrame(
        {"checkpoint": run["method"], "layer": layer, "eigenvalue": value, "converged": sure}
        for run in done.to_dict("records")
        for layer, value, sure in zip(run["layers"], run["layer_eigenvalues"], run["layer_converged"], strict=True)
    )


def _densities(done: pd.DataFrame) -> Figure:
    import pandas as pd

    from scala_lab.report.figures.curvature import density_lines

    frames = {
        run["method"]: pd.DataFrame({"node": run["nodes"], "weight": run["weights"]}) for run in done.to_dict("records")
    }
    return density_lines(frames, single=1 / done["touched_size"].max())


def _layer_bars(layers: pd.DataFrame) -> Figure:
    from scala_lab.report.figures.curvature import layer_bars

    return layer_bars(layers)


STUDY = Study(
    name="spectrum",
    title="Spectrum",
    question="What does the whole spectrum look like, which layers are sharp, and how large is kappa_alpha?",
    cells=cells,
    analyse=analyse,
)

if __name__ == "__main__":
    from scala_lab.study.api import main

    raise SystemExit(main(STUDY))
