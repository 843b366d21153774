"""Progress bars on a terminal, and a line per epoch elsewhere."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

B = TypeVar("B", bound="_Bar")


class _Bar:
    """A progress bar on stderr, drawn only if that is a terminal."""

    def __init__(self, shown: bool, *columns: ProgressColumn) -> None:
        self.shown, self.console = shown, Console(stderr=True)
        disable = not (shown and self.console.is_terminal)
        title = TextColumn("[bold]{task.description}")
        self.progress = Progress(title, *columns, console=self.console, disable=disable, transient=True)

    def __enter__(self: B) -> B:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


class RunBar(_Bar):
    """Shows loss, accuracy, learning rate, speed and time left of a run; without a terminal, a line per epoch."""

    def __init__(self, title: str, steps: int, steps_done: int, shown: bool = True) -> None:
        status = TextColumn("{task.fields[status]}")
        super().__init__(shown, BarColumn(bar_width=None), MofNCompleteColumn(), status, TimeRemainingColumn())
        self._task = self.progress.add_task(title, total=steps, completed=steps_done, status="")
        self._samples_per_second = 0.0

    def step(self, line: dict[str, Any]) -> None:
        """Move the bar, given the step's line of metrics.jsonl; after an epoch, leave a line above it."""
        if not self.shown:
            return
        speed = line["samples_per_second"]
        self._samples_per_second = 0.9 * (self._samples_per_second or speed) + 0.1 * speed
        accuracy = "" if line.get("accuracy") is None else f"  accuracy {line['accuracy']:.1%}"
        scale = f"  scale {line['loss_scale']:g}" if "loss_scale" in line else ""
        pace = f"{self._samples_per_second:,.0f} samples/s"
        status = f"loss {line['loss']:.4f}{accuracy}  lr {line['lr']:.2e}  {pace}{scale}"
        self.progress.update(self._task, completed=line["step"], status=status)
        if "eval" in line:
            text = f"epoch {line['epoch']:g}  {status}  {describe_metrics(line['eval'])}"
            self.console.print(text, highlight=False, soft_wrap=True)


class CountBar(_Bar):
    """Shows how many Hessian-vector products or points of a landscape are done, if this is the first worker."""

    def __init__(self, shown: bool = True) -> None:
        count = TextColumn("{task.fields[count]}, {task.fields[pace]}")
        super().__init__(shown, BarColumn(bar_width=20), count, TimeElapsedColumn())
        self._task: TaskID | None = None

    def start(self, title: str, unit: Literal["products", "points"], total: int | None = None) -> None:
        """Start to count something new; how many products there will be is not known beforehand."""
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._unit = unit if total is None else f"of {total} {unit}"
        self._task = self.progress.add_task(title, total=total, count=f"0 {self._unit}", pace="starting")

    def advance(self) -> None:
        """Count one."""
        if self._task is None:
            return
        self.progress.advance(self._task)
        task = self.progress.tasks[-1]
        if task.elapsed and task.completed:
            pace = f"{task.elapsed / task.completed:.2f} s each"
            self.progress.update(self._task, count=f"{int(task.completed)} {self._unit}", pace=pace)


def describe_metrics(metrics: dict[str, dict[str, float]]) -> str:
    """Put the metrics of all splits on one line.

    >>> describe_metrics({"dev": {"accuracy": 0.91234}})
    'dev accuracy 0.9123'
    """
    return "  ".join(
        f"{split} " + " ".join(f"{name} {'nan' if value is None else f'{value:.4f}'}" for name, value in values.items())
        for split, values in metrics.items()
    )
