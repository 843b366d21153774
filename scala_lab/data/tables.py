"""Rows out of files: TSV, CSV, JSONL and parquet, read strictly.

One split of a task before tokenisation, and a task's data as a whole.

A file's cells by column, with the line each row came from, and the labels read out of them.

Reading a user's CSV, TSV, JSONL or parquet file into a `Table`, strictly: the first fault is an error.

One rule per ending. `.csv`: commas, cells quoted as RFC 4180 says, so a quoted cell may hold commas and line
breaks. `.tsv`: tabs, never quoted, so a quote is part of the text and neither tab nor line break can be inside
a cell. `.jsonl`: one object per line. `.parquet`: as its schema says.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scala_lab.data.tasks import Task
from scala_lab.errors import UserError


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


def read_own_table(path: Path, wanted: Sequence[str]) -> Table:
    """The wanted columns of a file; every cell of them holds something."""
    _check_ending(path)
    table = _READERS[path.suffix.lower()](path, wanted)
    if not len(table):
        raise UserError(f"file {path} has no rows")
    for name in wanted:
        for row, cell in enumerate(table.columns[name]):
            if cell is None or cell != cell:  # nan, which other tools write where a cell is missing
                raise UserError(
                    f"{table.where(row)}: column {name!r} is empty" + ("" if cell is None else f" ({cell})")
                )
    return table


def column_names(path: Path) -> list[str]:
    """The columns a file has, for the person who has yet to choose among them."""
    _check_ending(path)
    if path.suffix.lower() == ".parquet":
        return list(_open_parquet(path).schema_arrow.names)
    if path.suffix.lower() == ".jsonl":
        return list(next(_json_objects(path))[1])
    return _header(path, _separated_rows(path))


def is_own_file(task: str) -> bool:
    """Whether `--task` names a file rather than a registered task."""
    return Path(task).suffix != "" or Path(task).name != task or Path(task).is_file()


def _check_ending(path: Path) -> None:
    if path.suffix.lower() not in _READERS:
        raise UserError(f"file {path} must end in one of {', '.join(_READERS)}")
    if not path.is_file():
        raise UserError(f"file {path} does not exist" if not path.exists() else f"{path} is not a file")


def _read_separated(path: Path, wanted: Sequence[str]) -> Table:
    rows = _separated_rows(path)
    header = _header(path, rows)
    require_columns(path, header, wanted)
    places = {name: header.index(name) for name in wanted}
    columns: dict[str, list[str | None]] = {name: [] for name in wanted}
    lines: list[int] = []
    for line, fields in rows:
        if len(fields) != len(header):
            note = "; a .tsv has no quoting, a .csv has" if path.suffix.lower() == ".tsv" else ""
            raise UserError(f"{path} line {line} has {len(fields)} fields instead of {len(header)}{note}")
        lines.append(line)
        for name, at in places.items():
            columns[name].append(fields[at] or None)
    return Table(path, columns, lines)


def _header(path: Path, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
    for _, names in rows:
        return [name.strip() for name in names]
    raise UserError(f"file {path} is empty")


def _separated_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line on which a row starts and its fields, header first; blank lines are passed over."""
    text = read_text(path)
    for line, fields in _tsv_rows(text) if path.suffix.lower() == ".tsv" else _csv_rows(path, text):
        if fields and fields != [""]:
            yield line, fields


def _tsv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    for line, content in enumerate(text.split("\n"), start=1):
        yield line, content.removesuffix("\r").split("\t")


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    with _long_cells():
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise UserError(f"{path} line {line}: the row that starts here is not valid CSV: {error}") from None
            yield line, fields


@contextmanager
def _long_cells() -> Iterator[None]:
    """Lift the csv module's limit of 128 KiB per cell."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(read_text(path).split("\n"), start=1):
        if not content.strip():
            continue
        try:
            value = json.loads(content)
        except ValueError as error:
            raise UserError(f"{path} line {line} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UserError(f'{path} line {line} is not a JSON object such as {{"text": ..., "label": ...}}')
        yield line, value


def _read_jsonl(path: Path, wanted: Sequence[str]) -> Table:
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    lines: list[int] = []
    for line, value in _json_objects(path):
        lines.append(line)
        for name in wanted:
            if name not in value:
                raise UserError(f"{path} line {line} has no key {name!r}; keys found: {', '.join(value)}")
            columns[name].append(value[name])
    return Table(path, columns, lines)


def _open_parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"file {path} cannot be read as parquet: {str(error).splitlines()[0]}") from None


def _read_parquet(path: Path, wanted: Sequence[str]) -> Table:
    import pyarrow

    file = _open_parquet(path)
    require_columns(path, file.schema_arrow.names, wanted)
    try:
        content = file.read(columns=list(wanted))
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"file {path} cannot be read as parquet: {str(error).splitlines()[0]}") from None
    columns = {name: content.column(name).to_pylist() for name in wanted}
    return Table(path, columns, range(1, content.num_rows + 1), unit="row")


_READERS: dict[str, Callable[[Path, Sequence[str]], Table]] = {
    ".csv": _read_separated,
    ".tsv": _read_separated,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
