"""A bar that moves with every Hessian-vector product; how many there will be is not known beforehand."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProductBar:
    """Counts products by checkpoint on stderr, on a terminal only."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed} products, {task.fields[pace]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ProductBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, title: str) -> None:
        """Begin to count for another checkpoint or set of rows."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(title, total=None, pace="making graphs")

    def advance(self) -> None:
        """Count a product."""
        if self._task is None:
            return
        self._progress.advance(self._task)
        task = self._progress.tasks[-1]
        if task.elapsed and task.completed:
            self._progress.update(self._task, pace=f"{task.elapsed / task.completed:.2f} s each")
