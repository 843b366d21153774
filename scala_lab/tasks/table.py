"""A file's cells by column, with the line each row came from, and the labels read out of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scala_lab.errors import UserError
from scala_lab.tasks.registry import Task
from scala_lab.tasks.rows import Rows

_BOM = "\ufeff"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Table:
    """The columns of one file.

    Attributes:
        path: Where they were read.
        columns: Cells by column name.
        lines: For each row the line of the file it starts on (the row's number where files have no lines).
        skipped: Malformed rows passed over.
        unit: What `lines` counts.
    """

    path: Path
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]
    skipped: int = 0
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """The place of a row, for error messages."""
        return f"{self.path} {self.unit} {self.lines[row]}"

    def class_indices(self, column: str, index: Mapping[str, int]) -> np.ndarray:
        """The column's classes as int64 indices; a spelling that `index` lacks is an error."""
        cells = self.columns[column]
        found = [index.get(cell, -1) for cell in cells]
        labels = np.array(found, dtype=np.int64)
        if len(labels) and labels.min() < 0:
            row = int(np.argmin(labels))
            raise UserError(
                f"{self.where(row)}: label {cells[row]!r} in column {column!r} is none of {', '.join(index)}"
            )
        return labels

    def scores(self, column: str) -> np.ndarray:
        """The column's numbers as float32; what is no number, or not a finite one, is an error."""
        scores = np.empty(len(self), dtype=np.float32)
        for row, cell in enumerate(self.columns[column]):
            try:
                score = float(cell)
            except (TypeError, ValueError):
                score = math.nan
            if not abs(score) <= _LARGEST:
                raise UserError(f"{self.where(row)}: {cell!r} in column {column!r} is not a finite number")
            scores[row] = score
        return scores

    def rows(self, task: Task) -> Rows:
        """The table as the task's rows."""
        first, *rest = (list(self.columns[name]) for name in task.text_columns)
        if task.regression:
            labels = self.scores(task.label_column)
        else:
            labels = self.class_indices(task.label_column, task.label_index)
        return Rows(first, rest[0] if rest else None, labels)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file without its byte order mark; errors name the file and the place in it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"file {path} does not exist") from None
    except OSError as error:
        raise UserError(f"file {path} cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} line {line}: byte {content[error.start]:#04x} at position {error.start} is not UTF-8; "
            "save the file as UTF-8"
        ) from None
    text = text.removeprefix(_BOM)
    if not text.strip():
        raise UserError(f"file {path} is empty")
    return text


def columns_found(names: Sequence[str]) -> str:
    """The columns of a file as error messages list them."""
    return "columns found: " + ", ".join(names)


def require_columns(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a file that lacks a column, or that has it twice."""
    for name in wanted:
        if name not in found:
            raise UserError(f"{path} has no column {name!r}; {columns_found(found)}")
        if list(found).count(name) > 1:
            raise UserError(f"{path} has more than one column {name!r}; {columns_found(found)}")
