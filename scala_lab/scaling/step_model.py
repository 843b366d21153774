"""A small model of the time of a step: what a worker computes, what workers exchange, what the optimizer takes.

    t = crowding * (per_step + per_micro_batch * k + per_row * rows + per_token * tokens + per_square * squares)
        + update_crowding * update + exchange

for the worker with most to do: its k micro-batches, their rows, tokens with padding, and squared padded lengths
(attention). Steps with noise have constants of their own, a whole run is a mixture of both kinds by its
delay. `exchange` is the all-reduce of `links.py` less what a backward pass hides of it; this project's trainer hides
nothing. The crowdings are what computing and updates slow down by when all cores of a host are busy; one worker alone
has none. Constants come from a calibration (`calibration.py`) or from reported times (`paper_fit.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scala_lab.batches import BatchPlan
from scala_lab.scaling.links import Network

BACKWARD = 2 / 3
"""Share of a plain step's computing that is its backward pass, behind which communication can hide."""


@dataclass(frozen=True)
class Load:
    """What one worker computes in a step.

    Attributes:
        micro_batches: How many.
        rows: In all of them.
        tokens: With padding.
        squares: Squared padded lengths, summed over rows.
    """

    micro_batches: float
    rows: float
    tokens: float
    squares: float = 0.0


def even_load(batch_size: int, workers: int, micro_batch: int, length: float) -> Load:
    """Rows of one length, dealt evenly: the worker with most rows."""
    rows = math.ceil(batch_size / workers)
    return Load(math.ceil(rows / micro_batch), rows, rows * length, rows * length**2)


def planned_load(plan: BatchPlan, global_batch: np.ndarray, rank: int = 0) -> Load:
    """What a plan gives a worker; the first one has most to do."""
    parts = [plan.lengths[rows] for rows in plan.deal(global_batch, rank)]
    shapes = [(len(lengths), int(lengths.max())) for lengths in parts]
    return Load(
        micro_batches=len(shapes),
        rows=sum(rows for rows, _ in shapes),
        tokens=sum(rows * longest for rows, longest in shapes),
        squares=sum(rows * longest**2 for rows, longest in shapes),
    )


@dataclass(frozen=True)
class Compute:
    """Seconds of a worker's own work."""

    per_step: float
    per_micro_batch: float
    per_row: float
    per_token: float
    per_square: float = 0.0

    def seconds(self, load: Load) -> float:
        """Seconds for a load."""
        return (
            self.per_step
            + self.per_micro_batch * load.micro_batches
            + self.per_row * load.rows
            + self.per_token * load.tokens
            + self.per_square * load.squares
        )


def fit_compute(loads: Sequence[Load], seconds: Sequence[float]) -> Compute:
    """The constants, all at least 0, that explain timed loads with the least squared relative error."""
    from scipy.optimize import nnls

    rows = np.array([[1.0, load.micro_batches, load.rows, load.tokens, load.squares] for load in loads])
    times = np.asarray(seconds)
    found, _ = nnls(rows / times[:, None], np.ones(len(times)))
    return Compute(*(float(value) for value in found))


@dataclass(frozen=True)
class StepModel:
    """Everything that decides how long a step takes somewhere.

    Attributes:
        plain: Computing in a step without noise.
        noise: Computing in a step with noise.
        update: Seconds of the optimizer's part, by its name.
        gradient_bytes: What workers exchange.
        network: Over what.
        crowding: What computing takes longer by, as a factor, when several workers of a host compute.
        update_crowding: The same of an update.
        overlap: Share of the backward pass behind which communication hides.
    """

    plain: Compute
    noise: Compute
    update: Mapping[str, float]
    gradient_bytes: float
    network: Network
    crowding: float = 1.0
    update_crowding: float = 1.0
    overlap: float = 0.0

    def step_seconds(self, load: Load, workers: int, optimizer: str, *, noise: float = 0.0) -> float:
        """Seconds of a step.

        Args:
            load: Of the worker with most to do.
            workers: P.
            optimizer: One of `update`.
            noise: Share of steps with noise; the result is their mean with those without.
        """
        computing = self.without_communication(load, workers, optimizer, noise=noise)
        exchange = self.network.all_reduce(self.gradient_bytes, workers)
        updating = self.update[optimizer] * (self.update_crowding if workers > 1 else 1.0)
        hidden = self.overlap * BACKWARD * (computing - updating)
        return computing + max(0.0, exchange - hidden)

    def without_communication(self, load: Load, workers: int, optimizer: str, *, noise: float = 0.0) -> float:
        """The same, were nothing to be sent."""
        own = (1 - noise) * self.plain.seconds(load) + noise * self.noise.seconds(load)
        update = self.update[optimizer]
        return own + update if workers == 1 else own * self.crowding + update * self.update_crowding


@dataclass(frozen=True)
class Workload:
    """A task as a model of time sees it.

    Attributes:
        rows: Training rows.
        length: Mean tokens of a row.
        micro_batch: Most rows at once.
        optimizer: One of the model's.
        noise: Share of steps with noise.
    """

    rows: int
    length: float
    micro_batch: int
    optimizer: str
    noise: float = 0.0


def epoch_seconds(model: StepModel, work: Workload, batch_size: int, workers: int) -> float:
    """Seconds of a pass over all rows; nan where a worker would be without samples."""
    if workers > batch_size:
        return math.nan
    load = even_load(batch_size, workers, work.micro_batch, work.length)
    return math.ceil(work.rows / batch_size) * model.step_seconds(load, workers, work.optimizer, noise=work.noise)


def best_workers(model: StepModel, work: Workload, batch_size: int, numbers: Iterable[int]) -> int:
    """The number of workers with the shortest epoch; the smallest of equals."""
    able = [number for number in numbers if number <= batch_size]
    return min(able, key=lambda number: epoch_seconds(model, work, batch_size, number))
