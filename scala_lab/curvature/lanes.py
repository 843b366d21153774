"""Several shards at once on the cores of one worker.

Shards are small, so that two cores that share the work of each operation wait for each other more than they compute.
Here every lane, a Python thread, takes whole shards and has its share of the compute threads to itself: autograd runs a
CPU graph in the thread that asks for it and lets go of the interpreter meanwhile. Which shard goes to which lane is a
function of their sizes alone, and lanes are summed in order, so that the same machine gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

MOST_LANES = 8
"""Each lane may hold a shard's graph at a time, so memory grows with them."""


def lane_count(shards: int, device: torch.device) -> int:
    """How many shards are worth running at once."""
    return max(1, min(torch.get_num_threads(), shards, MOST_LANES)) if device.type == "cpu" else 1


class Lanes:
    """Threads with compute threads of their own; one lane is the caller itself."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            threads = max(1, torch.get_num_threads() // count)
            self._pool = ThreadPoolExecutor(count, initializer=lambda: torch.set_num_threads(threads))

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The function of each item, one item per lane, in order."""
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))
