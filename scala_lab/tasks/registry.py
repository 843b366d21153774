"""What there is to learn: the GLUE tasks and the embedded ones, with columns, labels and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scala_lab.errors import UserError, nearest


@dataclass(frozen=True)
class Task:
    """A text classification or regression task.

    Attributes:
        name: What `--task` calls it.
        text_columns: One column, or two for sentence pairs.
        label_column: Column of the label.
        labels: Class names in the order of their indices, as files spell them; empty for regression.
        metrics: Names of metrics; the first is the headline.
        folder: Folder name in the classic GLUE layout, or '' where there is none.
    """

    name: str
    text_columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    folder: str = ""

    @property
    def regression(self) -> bool:
        """Whether the label is a number rather than a class."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Number of outputs of the model's head."""
        return max(1, len(self.labels))

    @property
    def embedded(self) -> bool:
        """Whether the task's rows are generated rather than read."""
        return self.name.startswith("mini-")
