"""Times on a machine that others use as well: what was disturbed is done again.

A worker that computes has its core's time as its own: what the clock shows beyond it was lost to other processes. One
that waits for messages is not disturbed by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from scala_lab.training.distributed import World

T = TypeVar("T")

LOST = 0.03
"""Share of its time that a worker may lose to others before it counts as disturbed."""
TRIES = 4
"""How often something is done at most; of those that were all disturbed, the one that was least."""


def clocked(act: Callable[[], Any], world: World) -> tuple[float, float]:
    """Seconds of something, and how many of them this thread was not computing; on a GPU, where it waits, none."""
    finish(world)
    own, started = time.thread_time(), time.perf_counter()
    act()
    finish(world)
    seconds = time.perf_counter() - started
    return seconds, 0.0 if world.device.type == "cuda" else max(0.0, seconds - (time.thread_time() - own))


def undisturbed(act: Callable[[], tuple[T, float]], world: World) -> T:
    """What `act` returns with the share of its time that was lost, done again while that is too much on any worker."""
    best: tuple[T, float] | None = None
    for _ in range(TRIES):
        found, lost = act()
        worst = _largest(lost, world)
        if best is None or worst < best[1]:
            best = found, worst
        if worst <= LOST:
            break
    assert best is not None
    return best[0]


def finish(world: World) -> None:
    """Wait for what the device still has to do."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def _largest(value: float, world: World) -> float:
    """The largest of all workers' values, on each of them."""
    if world.size == 1:
        return value
    found = torch.tensor([value], device=world.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)
