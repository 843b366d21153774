"""Progress bars on a terminal, and a line per epoch elsewhere."""

from typing import Any, Literal

from rich import progress as rich
from rich.console import Console


class _Bar(rich.Progress):
    """A progress bar on stderr, drawn only if that is a terminal."""

    def __init__(self, shown: bool, *columns: rich.ProgressColumn) -> None:
        title, console = rich.TextColumn("[bold]{task.description}"), Console(stderr=True)
        disable = not (shown and console.is_terminal)
        super().__init__(title, *columns, console=console, disable=disable, transient=True)


class RunBar(_Bar):
    """Shows loss, accuracy, learning rate, speed and time left of a run; without a terminal, a line per epoch."""

    def __init__(self, title: str, steps: int, steps_done: int, shown: bool = True) -> None:
        bar, status = rich.BarColumn(bar_width=None), rich.TextColumn("{task.fields[status]}")
        super().__init__(shown, bar, rich.MofNCompleteColumn(), status, rich.TimeRemainingColumn())
        self._shown, self._task = shown, self.add_task(title, total=steps, completed=steps_done, status="")
        self._samples_per_second = 0.0

    def step(self, line: dict[str, Any]) -> None:
        """Move the bar, given the step's line of metrics.jsonl; after an epoch, leave a line above it."""
        if not self._shown:
            return
        speed = line["samples_per_second"]
        self._samples_per_second = 0.9 * (self._samples_per_second or speed) + 0.1 * speed
        accuracy = "" if line.get("accuracy") is None else f"  accuracy {line['accuracy']:.1%}"
        scale = f"  scale {line['loss_scale']:g}" if "loss_scale" in line else ""
        pace = f"{self._samples_per_second:,.0f} samples/s"
        status = f"loss {line['loss']:.4f}{accuracy}  lr {line['lr']:.2e}  {pace}{scale}"
        self.update(self._task, completed=line["step"], status=status)
        if "eval" in line:
            text = f"epoch {line['epoch']:g}  {status}  {describe_metrics(line['eval'])}"
            self.console.print(text, highlight=False, soft_wrap=True)


class CountBar(_Bar):
    """Shows how many Hessian-vector products or points of a landscape are done, if this is the first worker."""

    def __init__(self, shown: bool = True) -> None:
        count = rich.TextColumn("{task.fields[count]}, {task.fields[pace]}")
        super().__init__(shown, rich.BarColumn(bar_width=20), count, rich.TimeElapsedColumn())
        self._task: rich.TaskID | None = None

    def begin(self, title: str, unit: Literal["products", "points"], total: int | None = None) -> None:
        """Begin to count something new; how many products there will be is not known beforehand."""
        if self._task is not None:
            self.remove_task(self._task)
        self._unit = unit if total is None else f"of {total} {unit}"
        self._task = self.add_task(title, total=total, count=f"0 {self._unit}", pace="starting")

    def count(self) -> None:
        """Count one."""
        if self._task is None:
            return
        self.advance(self._task)
        task = self.tasks[-1]
        if task.elapsed and task.completed:
            pace = f"{task.elapsed / task.completed:.2f} s each"
            self.update(self._task, count=f"{int(task.completed)} {self._unit}", pace=pace)


def describe_metrics(metrics: dict[str, dict[str, float]]) -> str:
    """Put the metrics of all splits on one line.

    >>> describe_metrics({"dev": {"accuracy": 0.91234}})
    'dev accuracy 0.9123'
    """
    return "  ".join(
        f"{split} " + " ".join(f"{name} {'nan' if value is None else f'{value:.4f}'}" for name, value in values.items())
        for split, values in metrics.items()
    )
