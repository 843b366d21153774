"""On CUDA the clock never waits for the device while it runs, and keeps no more events than the device is behind."""

from __future__ import annotations

import pytest
import torch

from scala_lab.clock import Clock


class Device:
    """A queue: events are recorded at once on the host and happen when the device comes to them."""

    def __init__(self) -> None:
        self.recorded = 0
        self.done = 0
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        self.done = self.recorded


@pytest.fixture
def device(monkeypatch):
    device = Device()

    class Event:
        """Happens a second after the event before it."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            device.recorded += 1
            self.time = device.recorded

        def query(self) -> bool:
            return self.time <= device.done

        def elapsed_time(self, end: Event) -> float:
            assert end.query(), "the device has not come to it yet"
            return 1000.0 * (end.time - self.time)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    return device


def test_events_are_read_as_the_device_comes_past_them(device):
    clock = Clock("cuda")
    lag = 6
    for _ in range(1000):
        with clock.phase("backward"):
            device.done = max(0, device.recorded - lag)
        assert len(clock._events) <= lag
    assert device.waits == 0
    assert clock.totals() == {"backward": 1000.0}
    assert device.waits == 1


def test_phase_that_holds_another_is_counted_with_it(device):
    clock = Clock("cuda")
    with clock.phase("backward"), clock.phase("data"):
        pass
    assert clock.totals() == {"data": 1.0, "backward": 3.0}
