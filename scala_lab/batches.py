"""From a training set to micro-batches: shuffled, sorted by length within a global batch, divided among workers.

The order of samples is a function of (seed, epoch), so that a resumed run sees the same batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class BatchPlan:
    """Which rows each worker runs together in each step.

    Within a global batch rows are sorted by length and cut into micro-batches where that is cheapest: more of them have
    less padding, but each has a cost of its own. Workers get whole micro-batches, smaller ones, or an equal share of
    the rows of each, whichever lets the busiest worker finish first. The last batch of an epoch may be smaller; no row
    is dropped or repeated, and a worker may be left without rows.
    """

    lengths: np.ndarray  # tokens of each row
    batch_size: int  # rows of a global batch
    micro_batch: int  # maximum number of rows that run at once on a worker
    workers: int = 1
    seed: int = 0
    part_cost: float = 0.0  # of a micro-batch beside its tokens, in tokens; see the function `part_cost`
    equal_lengths: bool = False  # whether only rows of equal length may run together: some models must not be padded
    _orders: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the rows."""
        return math.ceil(len(self.lengths) / self.batch_size)

    def global_batch(self, step: int) -> np.ndarray:
        """Return the rows of a step (0-based, over all epochs), longest first."""
        return self.groups(step)[0]

    def groups(self, step: int, size: int | None = None) -> list[np.ndarray]:
        """Return the rows of a step in groups of `size`, by default all in one, each sorted longest first."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch not in self._orders:  # a cache of one epoch
            self._orders.clear()
            self._orders[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))
        rows = self._orders[epoch][index * self.batch_size : (index + 1) * self.batch_size]
        parts = np.split(rows, np.arange(size, len(rows), size)) if size else [rows]
        return [part[np.argsort(-self.lengths[part], kind="stable")] for part in parts]

    def deal_groups(self, groups: list[np.ndarray], rank: int = 0, memory: float = 1.0) -> list[list[np.ndarray]]:
        """Return the micro-batches of one worker, by group: its share of a single group, else the groups it got."""
        if len(groups) == 1:
            return [self.deal(groups[0], rank, memory)]
        parts = [self._cut(group, self._max_rows(memory)) for group in groups]
        return deal(parts, [self._load(group) for group in parts], self.workers)[rank]

    def deal(self, global_batch: np.ndarray, rank: int = 0, memory: float = 1.0) -> list[np.ndarray]:
        """Return the micro-batches of one worker, each an array of rows; the first worker has the largest load.

        `memory` is the memory of a row relative to a plain step: micro-batches are smaller by this factor.
        """
        max_rows = self._max_rows(memory)
        if self.workers == 1:
            return self._cut(global_batch, max_rows)
        candidates = []
        for divisor in (1, 2, 4):
            parts = self._cut(global_batch, max(1, max_rows // divisor))
            candidates.append(deal(parts, [self._load([part]) for part in parts], self.workers))
        if not self.equal_lengths:
            # single rows in turn, from the longest on; all workers cut theirs at the same points
            shares = [global_batch[rank :: self.workers] for rank in range(self.workers)]
            cuts = cheapest_cuts(self.lengths[shares[0]], self.part_cost, max_rows)
            candidates.append([self._cut(share, max_rows, cuts) for share in shares])
        best = min(candidates, key=lambda dealt: max(map(self._load, dealt)))
        return sorted(best, key=self._load, reverse=True)[rank]

    def _max_rows(self, memory: float) -> int:
        return max(1, int(self.micro_batch / memory))

    def _cut(self, rows: np.ndarray, max_rows: int, cuts: list[int] | None = None) -> list[np.ndarray]:
        """Cut rows into micro-batches, at the given points or where that is cheapest."""
        if self.equal_lengths:
            return cut_equal_lengths(rows, self.lengths, max_rows)
        if cuts is None:
            cuts = cheapest_cuts(self.lengths[rows], self.part_cost, max_rows)
        return [piece for part in np.split(rows, cuts) for piece in cut(part, max_rows)]

    def _load(self, parts: list[np.ndarray]) -> float:
        return sum(len(part) * float(self.lengths[part[0]]) + self.part_cost for part in parts)


def part_cost(width: int) -> float:
    """Return the cost of a micro-batch beside its tokens, in tokens: calls, and reading and accumulating all weights.

    Measured on CPU: 34 tokens at width 384 with one thread, 73 with two, 330 at width 64 with one; a factor of two
    changes the time of a step by a few percent.
    """
    return 30_000 / width


def deal(items: Sequence[T], costs: Sequence[float], bins: int) -> list[list[T]]:
    """Divide items into bins so that the largest sum of costs is small: the costliest first, each to the smallest sum.

    Example:
        >>> deal("abcd", [5, 4, 3, 3], 2)
        [['a', 'd'], ['b', 'c']]
    """
    dealt: list[list[T]] = [[] for _ in range(bins)]
    loads = [0.0] * bins
    for index in sorted(range(len(items)), key=lambda index: -costs[index]):
        smallest = loads.index(min(loads))
        dealt[smallest].append(items[index])
        loads[smallest] += costs[index]
    return dealt


def cut(rows: np.ndarray, max_rows: int) -> list[np.ndarray]:
    """Cut rows, in order, into the fewest parts of at most `max_rows`, of nearly equal size."""
    return np.array_split(rows, math.ceil(len(rows) / max_rows)) if len(rows) else []


def cut_equal_lengths(rows: np.ndarray, lengths: np.ndarray, max_rows: int) -> list[np.ndarray]:
    """Cut rows that are sorted by length into parts of at most `max_rows` rows of one length each."""
    changes = np.flatnonzero(np.diff(lengths[rows])) + 1
    return [part for equal in np.split(rows, changes) for part in cut(equal, max_rows)]


def cheapest_cuts(lengths: np.ndarray, part_cost: float, max_rows: int | None = None) -> list[int]:
    """Return where to cut falling lengths so that the sum over parts of rows * longest + part_cost is minimal.

    Dynamic programming over the points where the length changes; a part of more than `max_rows` counts as several.

    Example:
        >>> cheapest_cuts(np.array([90, 90, 10, 10, 9]), part_cost=40)
        [2]
    """
    if not len(lengths):
        return []
    starts = np.flatnonzero(np.diff(lengths, prepend=lengths[0] + 1))
    ends = np.append(starts, len(lengths))
    longest = lengths[starts]
    cost, previous = np.zeros(len(ends)), np.zeros(len(ends), dtype=int)
    for index in range(1, len(ends)):
        rows = ends[index] - ends[:index]
        parts = 1 if max_rows is None else -(-rows // max_rows)
        totals = cost[:index] + rows * longest[:index] + parts * part_cost
        previous[index] = np.argmin(totals)
        cost[index] = totals[previous[index]]
    cuts, index = [], int(previous[-1])
    while index > 0:
        cuts.append(int(ends[index]))
        index = int(previous[index])
    return cuts[::-1]
