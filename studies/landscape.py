"""The loss around the checkpoint of each method: along its top eigenvector, and over a random plane."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from scala_lab.report.figures.landscape import side_by_side, slice_1d_plot
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, RunResult, Tabulation, declare
from scala_lab.study.tables import data_frame
from studies.sharpness import RATE_NOTE, first_seed_cells

LINE, PLANE = {"line_points": 31, "line_reach": 1.0}, {"plane_points": 11, "plane_reach": 1.0}
X_LABEL = "random direction 1 (in weight norms, row by row)"
Y_LABEL = "random direction 2 (in weight norms, row by row)"
NEAR = "mean rise near the centre of the plane"


def measure(
    runs: Sequence[RunResult],
    *,
    samples: int,
    line_points: int,
    line_reach: float,
    plane_points: int,
    plane_reach: float,
    threads: int,
) -> dict[str, Any]:
    """Compute loss and accuracy along a run's top eigenvector, and over two filter-normalised random directions.

    The line reaches `line_reach` units of weight to both sides, the plane `plane_reach` weight norms. `threads` is set
    by the caller: it is part of what determines the last bits. Values that are not finite are None, as are accuracies
    of a regression.
    """
    from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs
    from scala_lab.curvature.landscape import eigenvector_directions, filter_normalised, slice_1d, slice_2d

    loaded = load_run(runs[0], samples)
    model, batches = loaded.model, loaded.sets[0]
    top = top_eigenpairs(HessianOperator(model, batches), tol=1e-2)
    line = slice_1d(model, batches, eigenvector_directions(top)[0], line_points, (-line_reach, line_reach))
    directions = filter_normalised(model, 0), filter_normalised(model, 1)
    plane = slice_2d(model, batches, directions, plane_points, (-plane_reach, plane_reach))
    columns = {
        f"{kind}_{name}": [float(value) if np.isfinite(value) else None for value in table[name]]
        for kind, table in (("line", line), ("plane", plane))
        for name in table.columns
    }
    return {**columns, "eigenvalue": float(top.eigenvalues[0]), "residual": float(top.residuals[0])}


def cells(profile: Profile) -> list[Cell]:
    """Return small batch, large batch and ScaLA with the first seed."""
    return first_seed_cells(profile, measure, **LINE, **PLANE)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Draw line and plane of all methods on one scale, and tabulate how fast the loss rises."""
    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    task, results = done["task"].iloc[0], done.to_dict("records")
    lines = {run["method"]: _slice(run, "line", "position") for run in results}
    planes = {run["method"]: _slice(run, "plane", "x", "y") for run in results}
    table = data_frame(_table_row(run, lines[run["method"]], planes[run["method"]]) for run in results)
    rises = ", ".join(f"{row['method']} {row[NEAR]:.3g}" for row in table.to_dict("records"))
    notes = [
        f"Mean training loss over {profile.curvature.samples} rows of {task}, seed {profile.seeds[0]}, no dropout.",
        "Plane: the same two directions' random numbers, rescaled row by row to each model's weights.",
        f"{RATE_NOTE} A model that has not fitted its rows looks flat: compare models of similar loss.",
    ]
    title = "Loss along the top eigenvector of each model"
    draw = partial(side_by_side, planes, "Loss around the checkpoints, on one scale", X_LABEL, Y_LABEL)
    return Findings(
        tables=[Tabulation("", table, "How fast the loss rises around each model.", notes)],
        figures=[
            Drawing("line", slice_1d_plot(lines, title, "distance (units of weight)"), f"{title}, on {task}."),
            Drawing("", draw(), f"Loss over a random plane, on {task}."),
            Drawing("surface", draw(kind="surface"), f"The same as surfaces, on {task}."),
        ],
        found=f"Mean rise of the loss near the centre of the random plane: {rises} nats.",
    )


def _table_row(run: dict[str, Any], line: DataFrame, plane: DataFrame) -> dict[str, Any]:
    """Return a method's loss at the checkpoint, along the line and over the plane."""
    centre = float(line.loc[line["position"].abs().idxmin(), "loss"])
    radius = np.hypot(plane["x"], plane["y"])
    near = plane.loc[(radius > 0) & (radius < 0.3 * radius.max()), "loss"]
    return {
        "method": run["method"],
        "B": run["batch_size"],
        "loss": centre,
        "top eigenvalue": run["eigenvalue"],
        "largest loss on the line": line["loss"].max(),
        NEAR: float(near.mean()) - centre,
        "mean loss over the plane": plane["loss"].mean(),
    }


def _slice(run: dict[str, Any], kind: str, *axes: str) -> DataFrame:
    return data_frame({name: np.array(run[f"{kind}_{name}"], dtype=float) for name in (*axes, "loss", "accuracy")})


STUDY = declare(
    __name__,
    title="Loss landscape",
    question="Is the loss around a large-batch model steeper than around a small-batch one and ScaLA's, by eye?",
)
