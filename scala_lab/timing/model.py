"""A model of the time of a training step: computing, the optimizer's update and the all-reduce.

    t = crowding * (per_step + per_micro_batch * k + per_row * rows + per_token * tokens + per_square * squares)
        + update_crowding * update + exchange

for the worker with most to do: its k micro-batches, their rows, tokens with padding, and squared padded lengths
(attention). Steps with noise have constants of their own; a run is a mixture of both kinds by its delay. The crowdings
are the factors by which computing and updates slow down when all cores of a host are busy; one worker alone has none.
`exchange` is a ring all-reduce, of which the trainer hides nothing behind the backward pass: P members sum n bytes in
2 (P - 1) rounds, each of which costs the link's latency, with 2 (P - 1) / P * n bytes through every link. Where a run
has several hosts, each host sums up by itself, hosts exchange the sums, and each shares the total among its workers.
Constants come from a calibration (calibration.py) or from the times that the paper reports (paper_times.py).
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scala_lab.batches import BatchPlan


class Load(NamedTuple):
    """What one worker computes in a step: tokens count with padding, squares are squared padded lengths over rows."""

    micro_batches: float
    rows: float
    tokens: float
    squares: float = 0.0


def even_load(batch_size: int, workers: int, micro_batch: int, length: float) -> Load:
    """Return the load of the busiest worker when rows of one length are dealt evenly."""
    rows = math.ceil(batch_size / workers)
    return Load(math.ceil(rows / micro_batch), rows, rows * length, rows * length**2)


def planned_load(plan: BatchPlan, step: int, ascent_samples: int | None = None) -> Load:
    """Return the load that a plan gives the worker with most to do in a step.

    Where a method ascends on groups of `ascent_samples` rows (SAM), workers take whole groups, which are cut into
    micro-batches one by one.
    """
    groups, loads = plan.groups(step, ascent_samples), []
    for rank in range(plan.workers):
        parts = [plan.lengths[rows] for group in plan.deal_groups(groups, rank) for rows in group]
        shapes = [(len(lengths), int(lengths.max())) for lengths in parts]
        tokens, squares = (sum(rows * longest**power for rows, longest in shapes) for power in (1, 2))
        loads.append(Load(len(shapes), sum(rows for rows, _ in shapes), tokens, squares))
    return max(loads, key=lambda load: load.tokens + plan.part_cost * load.micro_batches)


class Compute(NamedTuple):
    """Seconds of a worker's own work, by what they are spent on."""

    per_step: float
    per_micro_batch: float
    per_row: float
    per_token: float
    per_square: float = 0.0

    def seconds(self, load: Load) -> float:
        """Return the seconds for a load."""
        return sum(map(operator.mul, self, (1, *load)))


def fit_compute(loads: Sequence[Load], seconds: Sequence[float]) -> Compute:
    """Fit constants, all at least 0, to timed loads, with the least squared relative error."""
    return Compute(*_fit(np.array([[1.0, *load] for load in loads]), seconds))


class Link(NamedTuple):
    """A link class: seconds that a round costs beside its bytes, and bytes per second in each direction."""

    latency: float
    bandwidth: float

    def all_reduce(self, size: float, members: int) -> float:
        """Return the seconds to sum `size` bytes over so many members; 0 for one."""
        rounds, share = rounds_and_share(members)
        return rounds * self.latency + share * size / self.bandwidth


FREE = Link(0.0, math.inf)


def rounds_and_share(members: int) -> tuple[int, float]:
    """Return the rounds of a ring all-reduce, and the bytes through every link as a share of the message.

    >>> rounds_and_share(4)
    (6, 1.5)
    """
    return 2 * (members - 1), 2 * (members - 1) / members


def fit_link(sizes: Sequence[float], seconds: Sequence[float], members: int) -> Link:
    """Fit latency and bandwidth, both at least 0, to timed all-reduces, with the least squared relative error."""
    rounds, share = rounds_and_share(members)
    latency, per_byte = _fit(np.array([[rounds, share * size] for size in sizes]), seconds)
    return Link(latency, 1 / per_byte if per_byte > 0 else math.inf)


def _fit(rows: np.ndarray, seconds: Sequence[float]) -> list[float]:
    """Solve rows @ constants = seconds by nonnegative least squares, each equation divided by its seconds."""
    from scipy.optimize import nnls

    times = np.asarray(seconds)
    return nnls(rows / times[:, None], np.ones(len(times)))[0].tolist()


@dataclass(frozen=True)
class StepModel:
    """All that decides how long a step takes on some machines: see the module.

    `update` is by optimizer, `gradient_bytes` the size of the message that workers exchange over links `within` a host,
    of up to `per_host` workers, and `across` hosts.
    """

    plain: Compute
    noise: Compute
    update: Mapping[str, float]
    gradient_bytes: float
    within: Link
    across: Link
    per_host: int
    crowding: float = 1.0
    update_crowding: float = 1.0

    def step_seconds(self, load: Load, workers: int, optimizer: str, *, noise: float = 0.0) -> float:
        """Return the mean seconds of steps of which a share has noise, for the load of the worker with most to do."""
        computing = self.without_communication(load, workers, optimizer, noise=noise)
        return computing + self.exchange(workers)

    def exchange(self, workers: int) -> float:
        """Return the seconds to sum the gradient over so many workers, on as few hosts as hold them."""
        hosts, size = math.ceil(workers / self.per_host), self.gradient_bytes
        return self.within.all_reduce(size, math.ceil(workers / hosts)) + self.across.all_reduce(size, hosts)

    def without_communication(self, load: Load, workers: int, optimizer: str, *, noise: float = 0.0) -> float:
        """Return the seconds of a step if nothing were sent."""
        own = (1 - noise) * self.plain.seconds(load) + noise * self.noise.seconds(load)
        update = self.update[optimizer]
        return own + update if workers == 1 else own * self.crowding + update * self.update_crowding


@dataclass(frozen=True)
class Workload:
    """A task as the model sees it: training rows, their mean length, and the share of steps with noise."""

    rows: int
    length: float
    micro_batch: int
    optimizer: str
    noise: float = 0.0


def epoch_seconds(model: StepModel, work: Workload, batch_size: int, workers: int) -> float:
    """Return the seconds of a pass over all rows; nan where a worker would be without samples."""
    if workers > batch_size:
        return math.nan
    load = even_load(batch_size, workers, work.micro_batch, work.length)
    return math.ceil(work.rows / batch_size) * model.step_seconds(load, workers, work.optimizer, noise=work.noise)


def best_workers(model: StepModel, work: Workload, batch_size: int, counts: Iterable[int]) -> int:
    """Return the number of workers with the shortest epoch, the smallest of equals."""
    able = [workers for workers in counts if workers <= batch_size]
    return min(able, key=lambda workers: epoch_seconds(model, work, batch_size, workers))
