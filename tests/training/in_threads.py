"""Workers of a run in threads of one process, that meet where workers do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from scala_lab.training.distributed import World

S = TypeVar("S")
T = TypeVar("T")
TIMEOUT = 120.0


class Meeting:
    """Where threads leave what each has and find the sum."""

    def __init__(self, workers: int) -> None:
        self.barrier = threading.Barrier(workers, timeout=TIMEOUT)
        self.brought: dict[int, Tensor] = {}

    def sum(self, rank: int, buffer: Tensor) -> None:
        self.brought[rank] = buffer.clone()
        self.barrier.wait()
        buffer.copy_(sum(self.brought[other] for other in range(1, len(self.brought))) + self.brought[0])
        self.barrier.wait()


@dataclass(frozen=True)
class ThreadWorld(World):
    """A worker that is a thread."""

    meeting: Meeting | None = None

    def all_reduce(self, buffer: Tensor) -> None:
        assert self.meeting is not None
        self.meeting.sum(self.rank, buffer)

    def broadcast(self, tensors: list[Tensor]) -> None:
        """All threads load the same."""


def both(make: Callable[[World], S], part: Callable[[S], T], count: int = 2) -> list[T]:
    """What each of two or more workers comes to.

    Args:
        make: Makes a worker, one after the other: loading models from two threads at once is not for transformers.
        part: What all then do side by side.
        count: How many workers there are.
    """
    meeting = Meeting(count)
    workers = [make(ThreadWorld(rank, count, torch.device("cpu"), meeting=meeting)) for rank in range(count)]

    def run(worker: S) -> T:
        try:
            return part(worker)
        except BaseException:
            meeting.barrier.abort()  # the other one need not wait
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, workers))
