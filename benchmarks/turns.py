"""Taking turns: whatever else the machine does in the meantime hits all sides alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


def seconds_of(function: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def in_turns(
    sides: Mapping[str, Callable[[int], float | None]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each side in each round.

    Every other round goes through the sides backwards, so that none always follows the same neighbour.

    Args:
        sides: By name, a function of the round's number; what it returns, if anything, is taken for its seconds.
        rounds: How many are kept.
        warm_up: Rounds before them, which are not.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            started = time.perf_counter()
            told = sides[name](number)
            taken = time.perf_counter() - started if told is None else told
            if number >= warm_up:
                seconds[name].append(taken)
                print(f"  {name}: {taken:.3g} s", flush=True)
    return seconds
