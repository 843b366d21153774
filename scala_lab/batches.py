"""From a training set to micro-batches: shuffled, sorted by length within a global batch, dealt to workers.

The order of samples is a function of (seed, epoch), so any step's micro-batches can be named without having run
the steps before it: a resumed run sees the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class BatchPlan:
    """Which rows each worker runs together in each step.

    Within a global batch rows are sorted by length and cut into micro-batches where that is cheapest, padding against
    the cost of one more micro-batch. Workers are dealt whole micro-batches, so that two of them pad no more than one
    would; where there are too few for all to carry like work, smaller ones, or their share of every micro-batch's rows,
    whichever lets the busiest worker end first. The last batch of an epoch may be smaller; no row is dropped or
    repeated, and a worker may be left without rows.

    Attributes:
        lengths: Tokens of each row.
        batch_size: Rows of a global batch.
        micro_batch: Most rows that run at once on a worker.
        workers: Number of workers.
        seed: The run's seed.
        part_cost: What a micro-batch costs beside its tokens, in tokens; see `part_cost`.
        equal_lengths: Whether only rows of equal length may run together, for models that must not be padded.
    """

    lengths: np.ndarray
    batch_size: int
    micro_batch: int
    workers: int = 1
    seed: int = 0
    part_cost: float = 0.0
    equal_lengths: bool = False
    _orders: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the rows."""
        return math.ceil(len(self.lengths) / self.batch_size)

    def global_batch(self, step: int) -> np.ndarray:
        """Rows of a step (0-based, over all epochs), longest first."""
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = self._order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        return rows[np.argsort(-self.lengths[rows], kind="stable")]

    def deal(self, global_batch: np.ndarray, rank: int = 0, memory: float = 1.0) -> list[np.ndarray]:
        """The micro-batches of one worker, each an array of rows; empty if no row is left for it.

        The first worker has most to do, if only by a little.

        Args:
            global_batch: From `global_batch`.
            rank: The worker.
            memory: Memory that a row takes, in that of a row of a plain step: micro-batches are smaller by it.
        """
        most = max(1, int(self.micro_batch / memory))
        if self.workers == 1:
            return self._cut_up(global_batch, most)
        ways = [self._dealt_whole(global_batch, most // share) for share in (1, 2, 4)]
        if not self.equal_lengths:
            ways.append(self._dealt_by_row(global_batch, most))
        best = min(ways, key=lambda dealt: max(map(self._work, dealt)))
        return sorted(best, key=self._work, reverse=True)[rank]

    def _dealt_whole(self, global_batch: np.ndarray, most: int) -> list[list[np.ndarray]]:
        """Micro-batches for each worker: the dearest first, each to whoever has least to do."""
        parts = self._cut_up(global_batch, max(1, most))
        return deal(parts, [self._cost(part) for part in parts], self.workers)

    def _dealt_by_row(self, global_batch: np.ndarray, most: int) -> list[list[np.ndarray]]:
        """Every worker gets one row in turn, from the longest on, and cuts its own where the first one would."""
        cuts = cheapest_cuts(self.lengths[global_batch[:: self.workers]], self.part_cost, most)
        shares = [np.split(global_batch[rank :: self.workers], cuts) for rank in range(self.workers)]
        return [[piece for part in parts for piece in cut(part, most)] for parts in shares]

    def _cut_up(self, rows: np.ndarray, most: int) -> list[np.ndarray]:
        if self.equal_lengths:
            return cut_equal_lengths(rows, self.lengths, most)
        parts = np.split(rows, cheapest_cuts(self.lengths[rows], self.part_cost, most))
        return [piece for part in parts for piece in cut(part, most)]

    def _cost(self, part: np.ndarray) -> float:
        return len(part) * float(self.lengths[part[0]]) + self.part_cost

    def _work(self, parts: list[np.ndarray]) -> float:
        return sum(map(self._cost, parts))

    def _order(self, epoch: int) -> np.ndarray:
        """The permutation of an epoch; the last one asked for is kept."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))
        return self._orders[epoch]


def deal(items: Sequence[T], costs: Sequence[float], hands: int) -> list[list[T]]:
    """Items for each hand so that the largest sum of costs is small: the dearest first, each to whoever has least.

    Example:
        >>> deal("abcd", [5, 4, 3, 3], 2)
        [['a', 'd'], ['b', 'c']]
    """
    dealt: list[list[T]] = [[] for _ in range(hands)]
    loads = [0.0] * hands
    for place in sorted(range(len(items)), key=lambda place: -costs[place]):
        idlest = loads.index(min(loads))
        dealt[idlest].append(items[place])
        loads[idlest] += costs[place]
    return dealt


def cut(rows: np.ndarray, most: int) -> list[np.ndarray]:
    """Cut rows, in order, into the fewest parts of at most `most`, of nearly equal size."""
    return np.array_split(rows, math.ceil(len(rows) / most)) if len(rows) else []


def cut_equal_lengths(rows: np.ndarray, lengths: np.ndarray, most: int) -> list[np.ndarray]:
    """Cut rows that are sorted by length into parts of at most `most` rows of one length each."""
    changes = np.flatnonzero(np.diff(lengths[rows])) + 1
    return [part for equal in np.split(rows, changes) for part in cut(equal, most)]


def part_cost(width: int) -> float:
    """What a micro-batch costs beside its tokens, in tokens: calls, and reading and adding up all weights.

    Measured on CPU: 34 tokens at width 384 with one thread, 73 with two, 330 at width 64 with one; steps are within a
    few percent of the best anywhere between half of this and twice as much.
    """
    return 30_000 / width


def cheapest_cuts(lengths: np.ndarray, part_cost: float, most: int | None = None) -> list[int]:
    """Where to cut falling lengths so that the sum over parts of rows * longest + part_cost is least.

    Args:
        lengths: Of rows, longest first.
        part_cost: Of a part, in tokens.
        most: Rows of a part; a longer one counts as several, padded as one.

    Example:
        >>> cheapest_cuts(np.array([90, 90, 10, 10, 9]), part_cost=40)
        [2]
    """
    if not len(lengths):
        return []
    starts = np.flatnonzero(np.diff(lengths, prepend=lengths[0] + 1))
    ends = np.append(starts, len(lengths))
    longest = lengths[starts]
    cost, came_from = np.zeros(len(ends)), np.zeros(len(ends), dtype=int)
    for place in range(1, len(ends)):
        rows = ends[place] - ends[:place]
        parts = 1 if most is None else -(-rows // most)
        totals = cost[:place] + rows * longest[:place] + parts * part_cost
        came_from[place] = np.argmin(totals)
        cost[place] = totals[came_from[place]]
    cuts, place = [], int(came_from[-1])
    while place > 0:
        cuts.append(int(ends[place]))
        place = int(came_from[place])
    return cuts[::-1]
