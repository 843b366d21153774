"""What the person sees while a run trains: a live bar on a terminal, a line per epoch elsewhere, TensorBoard events.

TensorBoard events, when tensorboard is installed.

What the person sees while a run trains: a live bar on a terminal, a line per epoch elsewhere.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Events:
    """Forwards the lines of metrics.jsonl to TensorBoard."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, line: dict[str, Any]) -> None:
        """Add every number of a line under its name."""
        for name, value in line.items():
            if name not in ("step", "eval") and value is not None:
                self._writer.add_scalar(f"train/{name}", value, line["step"])
        for split, metrics in line.get("eval", {}).items():
            for name, value in metrics.items():
                self._writer.add_scalar(f"{split}/{name}", value, line["step"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def open_events(folder: Path, steps_done: int) -> Events | None:
    """A writer whose earlier events past `steps_done` are hidden, or None without tensorboard."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return Events(SummaryWriter(str(folder), purge_step=steps_done + 1))


class Reporter(Protocol):
    """Hears of every step and every epoch."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, title: str, steps: int, steps_done: int) -> None:
        """Hear how long the run is and where it starts."""
        ...

    def step(self, line: dict[str, Any]) -> None:
        """Hear of a step: the line that goes into metrics.jsonl."""
        ...


class Silent:
    """Says nothing; for sweeps, tests and all workers but the first."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begin(self, title: str, steps: int, steps_done: int) -> None:
        """Say nothing."""

    def step(self, line: dict[str, Any]) -> None:
        """Say nothing."""


class ConsoleReporter:
    """Loss, accuracy, learning rate, samples per second and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._samples_per_second = 0.0

    def __enter__(self) -> ConsoleReporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, title: str, steps: int, steps_done: int) -> None:
        """Open the bar."""
        self._task = self._progress.add_task(title, total=steps, completed=steps_done, status="")
        self._started = time.perf_counter()

    def step(self, line: dict[str, Any]) -> None:
        """Move the bar; after an epoch, leave a line above it."""
        speed = line["samples_per_second"]
        self._samples_per_second = 0.9 * (self._samples_per_second or speed) + 0.1 * speed
        parts = [f"loss {line['loss']:.4f}"]
        if line.get("accuracy") is not None:
            parts.append(f"accuracy {line['accuracy']:.1%}")
        parts += [f"lr {line['lr']:.2e}", f"{self._samples_per_second:,.0f} samples/s"]
        if "loss_scale" in line:
            parts.append(f"scale {line['loss_scale']:g}")
        status = "  ".join(parts)
        self._progress.update(self._task, completed=line["step"], status=status)
        if "eval" in line:
            self.console.print(
                f"epoch {line['epoch']:g}  {status}  {describe_metrics(line['eval'])}", highlight=False, soft_wrap=True
            )


def describe_metrics(metrics: dict[str, dict[str, float]]) -> str:
    """Metrics of all splits on one line.

    Example:
        >>> describe_metrics({"dev": {"accuracy": 0.91234}})
        'dev accuracy 0.9123'
    """
    return "  ".join(
        f"{split} " + " ".join(f"{name} {'nan' if value is None else f'{value:.4f}'}" for name, value in values.items())
        for split, values in metrics.items()
    )
