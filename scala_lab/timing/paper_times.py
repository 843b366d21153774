"""Times that the paper reports, and a model of time fitted to two of its tasks and held against all four.

Wall-clock times that the paper reports, as numbers to fit a model of time to.

Seconds of whole runs of 6 epochs on V100 GPUs, 16 to a host, from its Tables 1 and 2. `baseline 1x1` is one GPU at
B=32, `baseline 2x16` 32 GPUs at B=32; the others are 32 GPUs at B=1024.

A model of time fitted to what the paper reports for two tasks, and what it makes of all four.

The tables have one and 32 workers, one kind of host, and nothing of what a step is spent on. So what they can tell is
few constants: what a step, a row and a token cost, how much more on 32 workers (crowding: a batch of 32 rows takes
0.27 s on one GPU, and 0.50 s on each of 32), an exchange, what LAMB takes beyond AdamW, and what noise adds over a
whole run. One link class stands for all links. What a round of messages costs the tables do not show: LATENCY is
assumed, and matters from hundreds of workers on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scala_lab.timing.model import Compute, Link, Load, Network, StepModel

TASKS = ("MNLI", "QNLI", "QQP", "SST-2")
SMALL_STEPS = (73632, 19644, 68226, 12630)
LARGE_STEPS = (2301, 615, 2133, 396)
LENGTHS = (39.6, 49.1, 30.6, 13.4)
"""Mean tokens of a training row, by BERT's uncased word pieces."""
PARAMETERS = {"BERT-base": 110e6, "RoBERTa-large": 355e6}

PLACES: dict[str, tuple[int, int]] = {
    "baseline 1x1": (1, 32),
    "baseline 2x16": (32, 32),
    "baseline B=1K": (32, 1024),
    "LAMB B=1K": (32, 1024),
    "ScaLA B=1K": (32, 1024),
}
"""Workers and batch size of each row."""

SECONDS: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "BERT-base": {
        "baseline 1x1": (19635, 5535, 16494, 2736),
        "baseline 2x16": (8848, 2408, 11311, 1494),
        "baseline B=1K": (1148, 349, 2892, 134),
        "LAMB B=1K": (1180, 359, 2978, 139),
        "ScaLA B=1K": (1323, 432, 4229, 151),
    },
    "RoBERTa-large": {
        "baseline 1x1": (43090, 14188, 40945, 4940),
        "baseline 2x16": (18114, 4842, 16614, 3072),
        "baseline B=1K": (2514, 936, 1874, 317),
        "LAMB B=1K": (2646, 973, 1998, 324),
        "ScaLA B=1K": (3363, 1168, 2404, 401),
    },
}
"""By model and row, in the order of `TASKS`."""


def step_seconds(model: str, row: str) -> tuple[float, ...]:
    """Seconds of one step on each task."""
    steps = SMALL_STEPS if PLACES[row][1] == 32 else LARGE_STEPS
    return tuple(seconds / count for seconds, count in zip(SECONDS[model][row], steps, strict=True))


LATENCY = 2e-5
"""Seconds of a round between GPUs; assumed."""
FITTED_ON = ("MNLI", "SST-2")
"""The longest task, and the one with the shortest rows: they tell what a token costs from what a step does."""
CROWDING = tuple(1 + 0.05 * step for step in range(81))
MOST_WORKERS = 1 << 30
LAMB, SCALA = "LAMB", "ScaLA"
"""How rows of the tables begin."""

Place = tuple[str, str, int, int, float]
"""Row, task, workers, batch size and seconds of a reported cell."""


@dataclass(frozen=True)
class PaperCell:
    """A reported time of a step.

    Attributes:
        row: Of the tables.
        task: Of the tables.
        workers: P.
        batch_size: B.
        reported: Seconds of a step.
        fitted: What the model says.
        used: Whether the fit saw it.
    """

    row: str
    task: str
    workers: int
    batch_size: int
    reported: float
    fitted: float
    used: bool


def fit_paper(model: str, tasks: Sequence[str] = FITTED_ON) -> tuple[StepModel, list[PaperCell]]:
    """Fit the constants on some tasks, and predict all cells.

    For each of many values of crowding the other constants follow from nonnegative least squares of relative errors;
    the best is kept. What noise adds is found in a second fit, on what the first leaves of the rows with noise.

    Returns:
        The model, in which steps with noise stand for a mean step of a run with ScaLA; and every reported cell.
    """
    places: list[Place] = [
        (row, task, *PLACES[row], seconds)
        for row in PLACES
        for task, seconds in zip(TASKS, step_seconds(model, row), strict=True)
    ]
    seen = [place for place in places if place[1] in tasks]
    size = 4.0 * PARAMETERS[model]
    without = min((_fit_plain(seen, size, crowding) for crowding in CROWDING), key=lambda fit: fit[0])[1]
    whole = _fit_noise(seen, without)
    return whole, [
        PaperCell(row, task, workers, batch, reported, predict(whole, row, task, workers, batch), task in tasks)
        for row, task, workers, batch, reported in places
    ]


def _fit_plain(seen: Sequence[Place], size: float, crowding: float) -> tuple[float, StepModel]:
    """The best model for a given crowding, and what it leaves unexplained."""
    from scipy.optimize import nnls

    rows, left = [], []
    for row, task, workers, batch, seconds in seen:
        if row.startswith(SCALA):
            continue
        load, factor = _load(task, workers, batch), crowding if workers > 1 else 1.0
        exchanged = size * 2 * (workers - 1) / workers
        own = [factor, factor * load.rows, factor * load.tokens]
        rows.append([value / seconds for value in (*own, exchanged, float(row.startswith(LAMB)))])
        left.append(1 - Link(LATENCY, math.inf).all_reduce(size, workers) / seconds)
    (per_step, per_row, per_token, per_byte, lamb), error = nnls(np.array(rows), np.array(left))
    computing = Compute(float(per_step), 0.0, float(per_row), float(per_token))
    link = Link(LATENCY, 1 / float(per_byte) if per_byte > 0 else math.inf)
    update = {"adamw": 0.0, "lamb": float(lamb)}
    network = Network(link, link, per_host=MOST_WORKERS)
    return float(error), StepModel(computing, computing, update, size, network, crowding)


def _fit_noise(seen: Sequence[Place], without: StepModel) -> StepModel:
    """The model with what noise multiplies rows and tokens by, on average over a run."""
    from scipy.optimize import nnls

    plain = without.plain
    shares, rests = [], []
    for row, task, workers, batch, seconds in seen:
        if row.startswith(SCALA):
            load = _load(task, workers, batch)
            rows_only = replace(plain, per_step=0.0).seconds(load)
            shares.append(without.crowding * rows_only / seconds)
            rests.append(1 - without.step_seconds(load, workers, "lamb") / seconds)
    factor = 1 + float(nnls(np.array(shares)[:, None], np.array(rests))[0][0])
    return replace(without, noise=replace(plain, per_row=factor * plain.per_row, per_token=factor * plain.per_token))


def predict(model: StepModel, row: str, task: str, workers: int, batch_size: int) -> float:
    """Seconds of a step in a row of the tables, on any number of workers."""
    optimizer = "adamw" if row.startswith("baseline") else "lamb"
    load = _load(task, workers, batch_size)
    return model.step_seconds(load, workers, optimizer, noise=float(row.startswith(SCALA)))


def _load(task: str, workers: int, batch_size: int) -> Load:
    rows = batch_size / workers
    return Load(1, rows, rows * LENGTHS[TASKS.index(task)])
