"""The loss around the checkpoint of each method: along its top eigenvector, and over a random plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from studies._checkpoints import RATE_NOTE, SIDE_BY_SIDE, measured_cells

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile
    from scala_lab.training.run_dir import RunResult

LINE, PLANE = {"line_points": 31, "line_reach": 1.0}, {"plane_points": 11, "plane_reach": 1.0}
X_LABEL = "random direction 1 (in weight norms, row by row)"
Y_LABEL = "random direction 2 (in weight norms, row by row)"


def measure(
    runs: Sequence[RunResult],
    *,
    samples: int,
    line_points: int,
    line_reach: float,
    plane_points: int,
    plane_reach: float,
    tol: float = 1e-2,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Compute loss and accuracy along a run's top eigenvector, and over two filter-normalised random directions.

    The line reaches `line_reach` units of weight to both sides, the plane `plane_reach` weight norms. `threads` is set
    by the caller: it is part of what determines the last bits. Values that are not finite are None, as are accuracies
    of a regression.
    """
    from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs
    from scala_lab.curvature.landscape import eigenvector_directions, filter_normalised, slice_1d, slice_2d

    loaded = load_run(runs[0], samples, seed=seed)
    model, batches = loaded.model, loaded.sets[0]
    top = top_eigenpairs(HessianOperator(model, batches), 1, tol, seed=seed)
    line = slice_1d(model, batches, eigenvector_directions(top)[0], line_points, (-line_reach, line_reach))
    directions = filter_normalised(model, seed), filter_normalised(model, seed + 1)
    plane = slice_2d(model, batches, directions, plane_points, (-plane_reach, plane_reach))
    columns = {
        f"{kind}_{name}": [float(value) if np.isfinite(value) else None for value in table[name]]
        for kind, table in (("line", line), ("plane", plane))
        for name in table.columns
    }
    return {**columns, "eigenvalue": float(top.eigenvalues[0]), "residual": float(top.residuals[0])}


def cells(profile: Profile) -> list[Cell]:
    """Return small batch, large batch and ScaLA with the first seed."""
    settings = {"samples": profile.curvature.samples, "threads": profile.curvature.threads, **LINE, **PLANE}
    return measured_cells(profile, measure, lambda seed: settings, SIDE_BY_SIDE, profile.seeds[:1])


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Draw line and plane of all methods on one scale, and tabulate how fast the loss rises."""
    from scala_lab.report.figures.landscape import side_by_side, slice_1d_plot

    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    task = done["task"].iloc[0]
    lines = {run["method"]: _slice(run, "line", "position") for run in done.to_dict("records")}
    planes = {run["method"]: _slice(run, "plane", "x", "y") for run in done.to_dict("records")}
    table = landscape_table(done, lines, planes)
    same = "the same two directions' random numbers, rescaled row by row to each model's weights"
    notes = [
        f"Mean training loss over {profile.curvature.samples} rows of {task}, seed {profile.seeds[0]}, no dropout.",
        f"Plane: {same}.",
        RATE_NOTE,
    ]
    title = "Loss along the top eigenvector of each model"
    return Findings(
        tables=[Tabulation("", table, "How fast the loss rises around each model.", notes)],
        figures=[
            Drawing("line", slice_1d_plot(lines, title, "distance (units of weight)"), f"{title}, on {task}."),
            Drawing(
                "", side_by_side(planes, x_label=X_LABEL, y_label=Y_LABEL), f"Loss over a random plane, on {task}."
            ),
            Drawing(
                "surface",
                side_by_side(planes, x_label=X_LABEL, y_label=Y_LABEL, kind="surface"),
                f"The same as surfaces, on {task}.",
            ),
        ],
        found=_sentence(table),
    )


def landscape_table(
    done: pd.DataFrame, lines: dict[str, pd.DataFrame], planes: dict[str, pd.DataFrame]
) -> pd.DataFrame:
    """Return one row per method: the loss at the checkpoint, along the line and over the plane."""
    import pandas as pd

    rows = []
    for run in done.to_dict("records"):
        line, plane = lines[run["method"]], planes[run["method"]]
        centre = float(line.loc[line["position"].abs().idxmin(), "loss"])
        radius = np.hypot(plane["x"], plane["y"])
        near = plane.loc[(radius > 0) & (radius < 0.3 * radius.max()), "loss"]
        rows.append(
            {
                "method": run["method"],
                "B": run["batch_size"],
                "loss": centre,
                "top eigenvalue": run["eigenvalue"],
                "largest loss on the line": line["loss"].max(),
                "mean rise near the centre of the plane": float(near.mean()) - centre,
                "mean loss over the plane": plane["loss"].mean(),
            }
        )
    return pd.DataFrame(rows)


def _slice(run: dict[str, Any], kind: str, *axes: str) -> pd.DataFrame:
    import pandas as pd

    columns = {name: np.array(run[f"{kind}_{name}"], dtype=float) for name in (*axes, "loss", "accuracy")}
    return pd.DataFrame(columns)


def _sentence(table: pd.DataFrame) -> str:
    rises = ", ".join(
        f"{row['method']} {row['mean rise near the centre of the plane']:.3g}" for row in table.to_dict("records")
    )
    return f"Mean rise of the loss near the centre of the random plane: {rises} nats."


STUDY = Study(
    name="landscape",
    title="Loss landscape",
    question="Is the loss around a large-batch model steeper than around a small-batch one and ScaLA's, by eye?",
    cells=cells,
    analyse=analyse,
)

if __name__ == "__main__":
    from scala_lab.study.api import main

    raise SystemExit(main(STUDY))
