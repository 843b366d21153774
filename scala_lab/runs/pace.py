"""How long what is left will take, from how long like things took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from scala_lab.runs.measurement import Measurement
from scala_lab.runs.store import What


class Pace:
    """Seconds per unit of cost, of runs that are alike and of all runs; mean seconds of each kind of measurement."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def learn(self, what: What, cost: float, seconds: float) -> None:
        """Take note of how long something took."""
        for kind in _kinds(what):
            costs, total = self._seen[kind]
            self._seen[kind] = costs + _weight(what, cost), total + seconds

    def expect(self, what: What, cost: float) -> float | None:
        """Seconds that something will take, or None as long as nothing like it was seen."""
        for kind in _kinds(what):
            costs, total = self._seen.get(kind, (0.0, 0.0))
            if costs:
                return total / costs * _weight(what, cost)
        return None

    def left(self, left: Iterable[tuple[What, float]], at_once: float) -> float | None:
        """Seconds until all is done, or None as long as nothing was seen of what is left.

        What is to be alone takes its time by itself; kinds that were never seen are left out.
        """
        together, alone, known = 0.0, 0.0, False
        for what, cost in left:
            seconds = self.expect(what, cost)
            if seconds is None:
                continue
            known = True
            if isinstance(what, Measurement) and what.alone:
                alone += seconds
            else:
                together += seconds
        return together / at_once + alone if known else None


def _kinds(what: What) -> list[object]:
    """What it is like, the closest likeness first."""
    if isinstance(what, Measurement):
        return [what.function]
    return [(what.encoder.model, what.batches.batch_size, what.optim.optimizer), RUNS]


RUNS = "runs"


def _weight(what: What, cost: float) -> float:
    return 1.0 if isinstance(what, Measurement) else cost
