"""The whole spectrum of the Hessian at the end of training: both ends, trace, density, and each layer's alpha_i."""

from collections.abc import Sequence
from typing import Any

from scala_lab.report.figures.curvature import density_lines, layer_bars
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, RunResult, Tabulation, declare
from scala_lab.study.tables import data_frame
from studies.sharpness import RATE_NOTE, first_seed_cells

PROBES, LANCZOS_STEPS, TRACE_PRODUCTS = 1, 30, 15  # of the density, and the maximum number of probes of the trace


def measure(runs: Sequence[RunResult], *, samples: int, top_k: int, tol: float, threads: int) -> dict[str, Any]:
    """Measure both ends of the spectrum of a run's Hessian, its trace and density, and every layer's top eigenvalue.

    `threads` is set by the caller: it is part of what determines the last bits.
    """
    from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs
    from scala_lab.curvature.spectrum import kappa_alpha, layer_eigenvalues, spectral_density, trace

    loaded = load_run(runs[0], samples)
    op = HessianOperator(loaded.model, loaded.sets[0])
    top, low = top_eigenpairs(op, top_k, tol), top_eigenpairs(op, 1, tol, which="smallest")
    total = trace(op, max_products=TRACE_PRODUCTS, known=top if top.converged else None)
    density = spectral_density(op, PROBES, LANCZOS_STEPS)
    layers = layer_eigenvalues(op, loaded.model, tol)
    return {
        "eigenvalues": top.eigenvalues.tolist(),
        "residuals": top.residuals.tolist(),
        "smallest": float(low.eigenvalues[0]),
        "smallest_residual": float(low.residuals[0]),
        "trace": total.trace,
        "trace_error": total.error,
        "trace_converged": total.converged,
        "nodes": density.nodes.tolist(),
        "weights": density.weights.tolist(),
        "probe_of": density.probe_of.tolist(),
        "touched_size": density.touched_size,
        "full_size": density.full_size,
        "layers": list(layers),
        "layer_eigenvalues": [float(result.eigenvalues[0]) for result in layers.values()],
        "layer_residuals": [float(result.residuals[0]) for result in layers.values()],
        "layer_converged": [result.converged for result in layers.values()],
        "kappa_alpha": kappa_alpha(layers),
        "converged": all(result.converged for result in (top, low, *layers.values())),
        "hvps": op.products + sum(result.hvps for result in layers.values()),
    }


def cells(profile: Profile) -> list[Cell]:
    """Return small batch, large batch and ScaLA with the first seed."""
    return first_seed_cells(profile, measure, top_k=1, tol=profile.curvature.tol)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Tabulate the whole spectrum and the layers; draw densities and bars side by side."""
    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    task, results = done["task"].iloc[0], done.to_dict("records")
    notes = [
        f"Hessian of the mean training loss over {profile.curvature.samples} rows of {task}, seed {profile.seeds[0]}.",
        "Trace by random probes with the top eigenvectors taken out; its error is one standard error.",
        RATE_NOTE,
    ]
    layers = data_frame(
        {"checkpoint": run["method"], "layer": layer, "eigenvalue": value, "converged": converged}
        for run in results
        for layer, value, converged in zip(run["layers"], run["layer_eigenvalues"], run["layer_converged"], strict=True)
    )
    densities = {run["method"]: data_frame({"node": run["nodes"], "weight": run["weights"]}) for run in results}
    kappas = ", ".join(f"{run['method']} {run['kappa_alpha']:.3g}" for run in results)
    tops = ", ".join(f"{run['method']} {run['eigenvalues'][0]:.3g}" for run in results)
    by_layer = layers.pivot_table("eigenvalue", "layer", "checkpoint", sort=False)[list(done["method"])]
    local = "Local values at the checkpoint; the theorem's alpha_i bound the curvature everywhere."
    density = density_lines(densities, single=1 / done["touched_size"].max())
    return Findings(
        tables=[
            Tabulation("", spectrum_table(results), "Ends, trace and layers' spread of the spectrum.", notes),
            Tabulation("layers", by_layer, "alpha_i: top eigenvalue of each layer's block of the Hessian.", [local]),
        ],
        figures=[
            Drawing("", density, f"Spectral density of the Hessian on {task}."),
            Drawing("layers", layer_bars(layers), f"alpha_i of each layer on {task}, and kappa_alpha."),
        ],
        found=f"Top eigenvalue: {tops}. kappa_alpha, largest over smallest layer: {kappas}.",
    )


def spectrum_table(results: list[dict[str, Any]]) -> DataFrame:
    """Return one row per method."""
    return data_frame(
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
        for run in results
    )


STUDY = declare(
    __name__,
    title="Spectrum",
    question="What does the whole spectrum look like, which layers are sharp, and how large is kappa_alpha?",
)
