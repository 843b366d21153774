"""How long each phase of a step takes, by the CPU's clock or by CUDA events."""

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

PHASES = (
    *("data", "clean forward", "inner forward", "inner backward"),
    *("adversarial forward", "backward", "all-reduce", "optimizer"),
)


class Clock:
    """Adds up the seconds spent in each phase, from some `seconds` on.

    On CUDA a phase is bracketed by two events, so that measuring does not synchronise. They are read once the device
    has passed them; only `totals` waits for that.
    """

    def __init__(self, device_type: str = "cpu", seconds: Mapping[str, float] | None = None) -> None:
        self._cuda = device_type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float, seconds or {})
        self._events: deque[tuple[str, Any, Any]] = deque()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        if self._cuda:
            import torch

            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((name, start, end))
            self._read_events()
            return
        started = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - started

    def totals(self) -> dict[str, float]:
        """Return the seconds by phase so far, in the order of `PHASES`."""
        if self._events:
            import torch

            torch.cuda.synchronize()
            self._read_events()
        return {name: self._seconds[name] for name in PHASES if name in self._seconds}

    def _read_events(self) -> None:
        """Add the times of the phases that the device has finished."""
        while self._events and self._events[0][2].query():
            name, start, end = self._events.popleft()
            self._seconds[name] += start.elapsed_time(end) / 1000
