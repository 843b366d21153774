"""Progress of a sweep on the console: a live view on a terminal, elsewhere a line per cell, with the time left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from scala_lab.sweep.cells import Measurement, WorkItem, runs_alone
from scala_lab.sweep.work import Job

MAX_NAMES = 6
"""How many running cells are named in the live view."""


class SweepView(AbstractContextManager["SweepView"]):
    """Shows how many jobs are done, running, failed and left, and the time that is left.

    It is given all jobs and their costs by key, and the statuses of those that had ended before the sweep.
    """

    def __init__(
        self, jobs: Mapping[str, Job], costs: Mapping[str, float], statuses: Mapping[str, str], console: Console
    ) -> None:
        self._jobs, self._costs, self._statuses, self._console = jobs, costs, dict(statuses), console
        self._pace, self._at_once = Pace(), 1.0
        self._live: Live | None = None
        if console.is_terminal and not console.quiet:
            self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> SweepView:
        if self._live:
            self._live.start()
        else:
            self._print(self._summary())
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._print(self._summary())

    def learn(self, key: str, seconds: float | None) -> None:
        """Use how long a job took, if it is known, to estimate the time that is left."""
        if seconds is not None:
            self._pace.learn(self._jobs[key].item, self._costs[key], seconds)

    def end(self, key: str, status: str) -> None:
        """Count a job that ended; name it if there is no live view, or if it did not finish."""
        self._statuses[key] = status
        if status != "finished" or not self._live:
            self._print(f"{status} {self._jobs[key].item.name}" + ("" if self._live else f": {self._summary()}"))

    def update(self, running: Sequence[Job], locked: Sequence[Job], at_once: float) -> None:
        """Redraw the live view with the jobs that run here and those that other sweeps work on."""
        self._at_once = at_once
        if not self._live:
            return
        lines = [Text(self._summary(), style="bold")]
        lines += [Text(f"  running  {job.item.name}", no_wrap=True) for job in running[:MAX_NAMES]]
        if len(running) > MAX_NAMES:
            lines.append(Text(f"  and {len(running) - MAX_NAMES} more"))
        lines += [Text(f"  waiting for another sweep  {job.item.name}", no_wrap=True) for job in locked[:MAX_NAMES]]
        bar = ProgressBar(total=max(1, len(self._jobs)), completed=len(self._statuses), width=None)
        self._live.update(Group(bar, *lines), refresh=True)

    def _summary(self) -> str:
        counts = Counter(self._statuses.values())
        left = [(job.item, self._costs[key]) for key, job in self._jobs.items() if key not in self._statuses]
        parts = [f"{len(self._statuses)} of {len(self._jobs)} done"]
        parts += [f"{counts[status]} {status}" for status in ("diverged", "failed") if counts[status]]
        if left:
            parts.append(f"{len(left)} left")
            seconds = self._pace.seconds_left(left, self._at_once)
            if seconds is not None:
                parts.append(f"about {describe_seconds(seconds)} to go")
        return ", ".join(parts)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Pace:
    """Estimates times from those of similar items: seconds per unit of cost of runs, mean seconds of measurements."""

    def __init__(self) -> None:
        self._totals: dict[object, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def learn(self, item: WorkItem, cost: float, seconds: float) -> None:
        """Add how long an item took."""
        for kind in _kinds(item):
            costs, total = self._totals[kind]
            self._totals[kind] = costs + _weight(item, cost), total + seconds

    def expect(self, item: WorkItem, cost: float) -> float | None:
        """Return the seconds that an item will take, or None if nothing similar has ended yet."""
        for kind in _kinds(item):
            costs, total = self._totals.get(kind, (0.0, 0.0))
            if costs:
                return total / costs * _weight(item, cost)
        return None

    def seconds_left(self, left: Iterable[tuple[WorkItem, float]], at_once: float) -> float | None:
        """Return the seconds that items with these costs will take in all, or None if nothing similar has ended.

        Measurements that run alone add their whole time; items that nothing similar has ended of are left out.
        """
        times = [(item, seconds) for item, cost in left if (seconds := self.expect(item, cost)) is not None]
        alone = sum(seconds for item, seconds in times if runs_alone(item))
        together = sum(seconds for item, seconds in times if not runs_alone(item))
        return together / at_once + alone if times else None


def _kinds(item: WorkItem) -> list[object]:
    """Return the kinds that an item belongs to, the most similar one first."""
    if isinstance(item, Measurement):
        return [item.path]
    return [(item.encoder.model, item.batches.batch_size, item.optim.optimizer), "any run"]


def _weight(item: WorkItem, cost: float) -> float:
    return 1.0 if isinstance(item, Measurement) else cost


def describe_seconds(seconds: float) -> str:
    """Write a duration in the unit that people would use.

    Example:
        >>> describe_seconds(45), describe_seconds(600), describe_seconds(100_000)
        ('45 s', '10 min', '27.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
