"""A bar that moves with every Hessian-vector product or every point of a landscape."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class CountBar:
    """Counts by checkpoint on stderr, on a terminal only.

    Args:
        shown: False for workers other than the first.
    """

    def __init__(self, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}, {task.fields[pace]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> CountBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, title: str, what: Literal["products", "points"], total: int | None = None) -> None:
        """Begin to count something else; how many products there will be is not known beforehand."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._what, self._total = what, total
        self._task = self._progress.add_task(title, total=total, count=self._count(0), pace="starting")

    def advance(self) -> None:
        """Count one."""
        if self._task is None:
            return
        self._progress.advance(self._task)
        task = self._progress.tasks[-1]
        if task.elapsed and task.completed:
            pace = f"{task.elapsed / task.completed:.2f} s each"
            self._progress.update(self._task, count=self._count(int(task.completed)), pace=pace)

    def _count(self, done: int) -> str:
        return f"{done} {self._what}" if self._total is None else f"{done} of {self._total} {self._what}"
