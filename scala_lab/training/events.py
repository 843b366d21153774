"""TensorBoard events, when tensorboard is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


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
