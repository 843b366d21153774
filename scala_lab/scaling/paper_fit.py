"""A model of time fitted to what the paper reports for two tasks, and what it makes of all four.

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

from scala_lab.scaling.links import Link, Network
from scala_lab.scaling.paper_times import LENGTHS, PARAMETERS, PLACES, TASKS, step_seconds
from scala_lab.scaling.step_model import Compute, Load, StepModel

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
