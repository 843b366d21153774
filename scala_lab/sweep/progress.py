"""What the person sees while a sweep runs, with the time that is left.

How long what is left will take, from how long like things took.

What the person sees while a sweep runs: one live view on a terminal, a line per cell elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from scala_lab.sweep.cells import Measurement
from scala_lab.sweep.store import WorkItem
from scala_lab.sweep.work import Job


class Pace:
    """Seconds per unit of cost, of runs that are alike and of all runs; mean seconds of each kind of measurement."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def learn(self, what: WorkItem, cost: float, seconds: float) -> None:
        """Take note of how long something took."""
        for kind in _kinds(what):
            costs, total = self._seen[kind]
            self._seen[kind] = costs + _weight(what, cost), total + seconds

    def expect(self, what: WorkItem, cost: float) -> float | None:
        """Seconds that something will take, or None as long as nothing like it was seen."""
        for kind in _kinds(what):
            costs, total = self._seen.get(kind, (0.0, 0.0))
            if costs:
                return total / costs * _weight(what, cost)
        return None

    def left(self, left: Iterable[tuple[WorkItem, float]], at_once: float) -> float | None:
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


def _kinds(what: WorkItem) -> list[object]:
    """What it is like, the closest likeness first."""
    if isinstance(what, Measurement):
        return [what.path]
    return [(what.encoder.model, what.batches.batch_size, what.optim.optimizer), RUNS]


RUNS = "runs"


def _weight(what: WorkItem, cost: float) -> float:
    return 1.0 if isinstance(what, Measurement) else cost


MOST_NAMES = 6
"""How many running cells are named in the live view."""


class SweepView(Protocol):
    """Hears how a sweep comes along."""

    def begin(self, jobs: Mapping[str, Job], costs: Mapping[str, float], over: Mapping[str, str]) -> None:
        """Hear what there is, what it costs, and how those ended that were there before."""
        ...

    def learn(self, what: WorkItem, cost: float, seconds: float) -> None:
        """Hear how long something took."""
        ...

    def ended(self, key: str, status: str) -> None:
        """Hear that a cell has ended."""
        ...

    def update(self, running: Sequence[Job], held: Sequence[str], at_once: float) -> None:
        """Hear what runs at the moment, here and in other sweeps."""
        ...


class Silent(AbstractContextManager["Silent"]):
    """Says nothing."""

    def __exit__(self, *_: object) -> None:
        return None

    def begin(self, jobs: Mapping[str, Job], costs: Mapping[str, float], over: Mapping[str, str]) -> None:
        """Say nothing."""

    def learn(self, what: WorkItem, cost: float, seconds: float) -> None:
        """Say nothing."""

    def ended(self, key: str, status: str) -> None:
        """Say nothing."""

    def update(self, running: Sequence[Job], held: Sequence[str], at_once: float) -> None:
        """Say nothing."""


class ConsoleView:
    """Cells done, running, failed and left, and the time that is left.

    Args:
        console: Default stderr. On a terminal a live view, elsewhere a line for each cell that ends.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._pace = Pace()

    def __enter__(self) -> ConsoleView:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()
            self._say(self._summary())

    def begin(self, jobs: Mapping[str, Job], costs: Mapping[str, float], over: Mapping[str, str]) -> None:
        """Open the view."""
        self._jobs, self._costs, self._at_once = jobs, costs, 1.0
        self._over = dict(over)
        if not self.console.is_terminal:
            self._say(self._summary())

    def learn(self, what: WorkItem, cost: float, seconds: float) -> None:
        """Keep it for the time that is left."""
        self._pace.learn(what, cost, seconds)

    def ended(self, key: str, status: str) -> None:
        """Count it; name it where there is no live view, or when it did not finish."""
        self._over[key] = status
        if status != "finished" or not self.console.is_terminal:
            name = self._jobs[key].name
            self._say(f"{status} {name}" + ("" if self.console.is_terminal else f": {self._summary()}"))

    def update(self, running: Sequence[Job], held: Sequence[str], at_once: float) -> None:
        """Redraw."""
        self._at_once = at_once
        if self.console.is_terminal:
            self._live.update(self._draw([job.name for job in running], held), refresh=True)

    def _draw(self, running: Sequence[str], held: Sequence[str]) -> Group:
        bar = ProgressBar(total=max(1, len(self._jobs)), completed=len(self._over), width=None)
        lines = [Text(self._summary(), style="bold")]
        lines += [Text(f"  running  {name}", no_wrap=True) for name in running[:MOST_NAMES]]
        if len(running) > MOST_NAMES:
            lines.append(Text(f"  and {len(running) - MOST_NAMES} more"))
        lines += [Text(f"  waiting for another sweep  {name}", no_wrap=True) for name in held[:MOST_NAMES]]
        return Group(bar, *lines)

    def _summary(self) -> str:
        counts = Counter(self._over.values())
        left = [(job.what, self._costs[key]) for key, job in self._jobs.items() if key not in self._over]
        parts = [f"{len(self._over)} of {len(self._jobs)} done"]
        parts += [f"{counts[status]} {status}" for status in ("diverged", "failed") if counts[status]]
        if left:
            parts.append(f"{len(left)} left")
            seconds = self._pace.left(left, self._at_once)
            if seconds is not None:
                parts.append(f"about {describe_seconds(seconds)} to go")
        return ", ".join(parts)

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def open_view(progress: bool) -> ConsoleView | Silent:
    """The view on stderr, or one that says nothing."""
    return ConsoleView() if progress else Silent()


def describe_seconds(seconds: float) -> str:
    """A length of time in the unit that people would use.

    Example:
        >>> describe_seconds(45), describe_seconds(600), describe_seconds(100_000)
        ('45 s', '10 min', '27.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
