"""From a training set to micro-batches: shuffled, sorted by length within a global batch, dealt to workers.

The order of samples is a function of (seed, epoch), so any step's micro-batches can be named without having run
the steps before it: a resumed run sees the same batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class BatchPlan:
    """Which rows each worker runs together in each step.

    Within a global batch rows are sorted by length and dealt in turn, so that all workers hold the same
    spread of lengths and carry equal work; each then cuts its rows, still sorted, into micro-batches of
    nearly equal size, so that little is padded. The last batch of an epoch may be smaller; no row is
    dropped or repeated, and a worker may be left without rows.

    Attributes:
        lengths: Tokens of each row.
        batch_size: Rows of a global batch.
        micro_batch: Most rows that run at once on a worker.
        workers: Number of workers.
        seed: The run's seed.
    """

    lengths: np.ndarray
    batch_size: int
    micro_batch: int
    workers: int = 1
    seed: int = 0
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

    def deal(self, global_batch: np.ndarray, rank: int = 0) -> list[np.ndarray]:
        """The micro-batches of one worker, each an array of rows; empty if no row is left for it."""
        return cut(global_batch[rank :: self.workers], self.micro_batch)

    def _order(self, epoch: int) -> np.ndarray:
        """The permutation of an epoch; the last one asked for is kept."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))
        return self._orders[epoch]


def cut(rows: np.ndarray, most: int) -> list[np.ndarray]:
    """Cut rows, in order, into the fewest parts of at most `most`, of nearly equal size."""
    return np.array_split(rows, math.ceil(len(rows) / most)) if len(rows) else []
