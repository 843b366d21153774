"""One split of a task before tokenisation, and a task's data as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scala_lab.tasks.registry import Task


@dataclass(frozen=True)
class Rows:
    """Texts beside their labels. `second` is None for single-sentence tasks.

    Labels are int64 class indices in the order of `Task.labels`, or float32 scores for regression.
    """

    first: list[str]
    second: list[str] | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def take(self, indices: np.ndarray) -> Rows:
        """These rows, in this order."""
        second = None if self.second is None else [self.second[index] for index in indices]
        return Rows([self.first[index] for index in indices], second, self.labels[indices])


@dataclass(frozen=True)
class TaskData:
    """What a source delivered."""

    task: Task
    train: Rows
    evals: Mapping[str, Rows]
    """By name; the first is the headline split (`dev`, or mnli's `dev_matched` before `dev_mismatched`)."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Malformed rows passed over, by file name."""
