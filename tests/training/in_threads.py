"""Two workers of a run in two threads of one process, that meet where workers do."""

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
    """Where two threads leave what each has and find the sum."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=TIMEOUT)
        self.brought: dict[int, Tensor] = {}

    def sum(self, rank: int, buffer: Tensor) -> None:
        self.brought[rank] = buffer.clone()
        self.barrier.wait()
        buffer.copy_(self.brought[0] + self.brought[1])
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


def both(make: Callable[[World], S], part: Callable[[S], T]) -> list[T]:
    """What each of two workers comes to.

    Args:
        make: Makes a worker, one after the other: loading models from two threads at once is not for transformers.
        part: What both then do side by side.
    """
    meeting = Meeting()
    workers = [make(ThreadWorld(rank, 2, torch.device("cpu"), meeting=meeting)) for rank in range(2)]

    def run(worker: S) -> T:
        try:
            return part(worker)
        except BaseException:
            meeting.barrier.abort()  # the other one need not wait
            raise

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, workers))
