"""Times that the paper reports, and a time model fitted to two of its tasks and compared with all four.

Seconds of whole runs on V100 GPUs, 16 to a host, from Tables 1 and 2. The tables have one and 32 workers, one kind of
host, and nothing of what a step is spent on, so they determine few constants: the cost of a step, a row and a token,
the crowding on 32 workers (a batch of 32 rows takes 0.27 s on one GPU, and 0.50 s on each of 32), an all-reduce, what
LAMB takes beyond AdamW, and what noise adds over a whole run. One link class stands for all links. What a round of
messages costs does not show in the tables: LATENCY is assumed, and matters from hundreds of workers on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.timing.model import Compute, Link, Load, StepModel

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

TASKS = ("MNLI", "QNLI", "QQP", "SST-2")
STEPS = {32: (73632, 19644, 68226, 12630), 1024: (2301, 615, 2133, 396)}
"""Steps of a run that the paper reports, by batch size."""
LENGTHS = (39.6, 49.1, 30.6, 13.4)  # mean tokens of a training row, by BERT's uncased word pieces
MNLI_ROWS = 392_702
PARAMETERS = {"BERT-base": 110e6, "RoBERTa-large": 355e6}
LAMB, SCALA = "LAMB", "ScaLA"
ROWS = {
    "baseline 1x1": (1, 32, (19635, 5535, 16494, 2736), (43090, 14188, 40945, 4940)),
    "baseline 2x16": (32, 32, (8848, 2408, 11311, 1494), (18114, 4842, 16614, 3072)),
    "baseline B=1K": (32, 1024, (1148, 349, 2892, 134), (2514, 936, 1874, 317)),
    "LAMB B=1K": (32, 1024, (1180, 359, 2978, 139), (2646, 973, 1998, 324)),
    "ScaLA B=1K": (32, 1024, (1323, 432, 4229, 151), (3363, 1168, 2404, 401)),
}
"""Workers and batch size of each row of the tables, and its seconds by task, of either model."""

LATENCY = 2e-5  # seconds of a round between GPUs; assumed
FITTED_ON = ("MNLI", "SST-2")
"""The longest task, and the one with the shortest rows: they separate the cost of a token from that of a step."""
CROWDING = tuple(1 + 0.05 * step for step in range(81))
MAX_WORKERS = 1 << 30


@dataclass(frozen=True)
class PaperCell:
    """Seconds of a step in a row of the tables, as reported and as fitted, and whether the fit saw it."""

    row: str
    task: str
    workers: int
    load: Load
    reported: float
    used: bool
    fitted: float = math.nan


def paper_projection(runs: Sequence[RunResult], *, model: str, workers: Sequence[int]) -> dict[str, Any]:
    """Fit the paper's times of one of its models on two tasks, predict all four, and project to more workers.

    The result has for each reported cell `row`, `task`, `reported` and `fitted` (seconds of a step) and `used` (1 where
    the fit saw it); the constants by name; and `projected_B` for B = 32 and 1024, seconds of an epoch of MNLI for each
    of `workers`, None where a worker would be without samples.
    """
    fitted, cells = fit_paper(model)
    result: dict[str, Any] = {
        **{name: [getattr(cell, name) for cell in cells] for name in ("row", "task", "reported", "fitted")},
        "used": [int(cell.used) for cell in cells],
        "step": fitted.plain.per_step,
        "row of a batch": fitted.plain.per_row,
        "token": fitted.plain.per_token,
        "crowding": fitted.crowding,
        "exchange": fitted.within.all_reduce(fitted.gradient_bytes, 32),
        "LAMB": fitted.update["lamb"],
        "noise": fitted.noise.per_token / fitted.plain.per_token,
        "projected_workers": list(workers),
    }
    for batch_size in (32, 1024):
        steps = math.ceil(MNLI_ROWS / batch_size)
        result[f"projected_{batch_size}"] = [
            steps * predict(fitted, "baseline", FITTED_ON[0], count, batch_size) if count <= batch_size else None
            for count in workers
        ]
    return result


def fit_paper(model: str) -> tuple[StepModel, list[PaperCell]]:
    """Fit the constants on two tasks, and predict all reported cells.

    For each of many values of crowding the other constants follow from nonnegative least squares of relative errors,
    and the best is taken. What noise adds is fitted afterwards, on what the first fit leaves of the rows with noise;
    the model's steps with noise stand for a mean step of a run with ScaLA.
    """
    cells = [
        PaperCell(row, task, workers, _load(task, workers, batch_size), seconds, task in FITTED_ON)
        for row, (workers, batch_size, *_) in ROWS.items()
        for task, seconds in zip(TASKS, step_seconds(model, row), strict=True)
    ]
    used = [cell for cell in cells if cell.used]
    size = 4.0 * PARAMETERS[model]
    without = min((_fit_plain(used, size, crowding) for crowding in CROWDING), key=lambda fit: fit[0])[1]
    whole = _fit_noise(used, without)
    return whole, [replace(cell, fitted=predict(whole, cell.row, cell.task, *ROWS[cell.row][:2])) for cell in cells]


def step_seconds(model: str, row: str) -> tuple[float, ...]:
    """Return the reported seconds of one step on each task."""
    _, batch_size, *of_models = ROWS[row]
    pairs = zip(of_models[list(PARAMETERS).index(model)], STEPS[batch_size], strict=True)
    return tuple(seconds / count for seconds, count in pairs)


def _fit_plain(cells: Sequence[PaperCell], size: float, crowding: float) -> tuple[float, StepModel]:
    """Fit the cells without noise for a given crowding; returns the remaining error and the model."""
    from scipy.optimize import nnls

    rows, targets = [], []
    for cell in cells:
        if cell.row.startswith(SCALA):
            continue
        factor = crowding if cell.workers > 1 else 1.0
        own = [factor, factor * cell.load.rows, factor * cell.load.tokens]
        exchanged = size * 2 * (cell.workers - 1) / cell.workers
        rows.append([value / cell.reported for value in (*own, exchanged, float(cell.row.startswith(LAMB)))])
        targets.append(1 - Link(LATENCY, math.inf).all_reduce(size, cell.workers) / cell.reported)
    (per_step, per_row, per_token, per_byte, lamb), error = nnls(np.array(rows), np.array(targets))
    computing = Compute(float(per_step), 0.0, float(per_row), float(per_token))
    link = Link(LATENCY, 1 / float(per_byte) if per_byte > 0 else math.inf)
    update = {"adamw": 0.0, "lamb": float(lamb)}
    return float(error), StepModel(computing, computing, update, size, link, link, MAX_WORKERS, crowding)


def _fit_noise(cells: Sequence[PaperCell], without: StepModel) -> StepModel:
    """Add the factor by which noise multiplies the cost of rows and tokens, on average over a run."""
    from scipy.optimize import nnls

    plain = without.plain
    noisy = [cell for cell in cells if cell.row.startswith(SCALA)]
    rows_only = [plain._replace(per_step=0.0).seconds(cell.load) for cell in noisy]
    shares = [without.crowding * own / cell.reported for own, cell in zip(rows_only, noisy, strict=True)]
    targets = [1 - without.step_seconds(cell.load, cell.workers, "lamb") / cell.reported for cell in noisy]
    factor = 1 + float(nnls(np.array(shares)[:, None], np.array(targets))[0][0])
    return replace(without, noise=plain._replace(per_row=factor * plain.per_row, per_token=factor * plain.per_token))


def predict(model: StepModel, row: str, task: str, workers: int, batch_size: int) -> float:
    """Return the seconds of a step in a row of the tables, on any number of workers."""
    optimizer = "adamw" if row.startswith("baseline") else "lamb"
    load = _load(task, workers, batch_size)
    return model.step_seconds(load, workers, optimizer, noise=float(row.startswith(SCALA)))


def _load(task: str, workers: int, batch_size: int) -> Load:
    rows = batch_size / workers
    return Load(1, rows, rows * LENGTHS[TASKS.index(task)])
