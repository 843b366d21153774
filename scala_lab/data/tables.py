"""Rows from files, read strictly: a user's CSV, TSV, JSONL or parquet file, where the first fault is an error.

`.csv`: commas, cells quoted as in RFC 4180, so a quoted cell may hold commas and line breaks. `.tsv`: tabs, never
quoted, so a quote is part of the text and neither tab nor line break can be inside a cell. `.jsonl`: one object per
line. `.parquet`: as its schema says.
"""

import csv
import dataclasses
import io
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from scala_lab.config import DataSpec
from scala_lab.data.tasks import SPLIT_STREAM, Rows, Task, TaskData, metrics_of
from scala_lab.errors import UserError

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INTEGER = re.compile(r"[+-]?[\d_]+")  # of the spellings of floats


@dataclass(frozen=True)
class Table:
    """The columns of one file."""

    path: Path
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]  # the line that each row starts on, or the row's number where the format has no lines
    skipped: int = 0  # malformed rows left out
    unit: str = "line"  # what `lines` counts

    def refuse(self, row: int, fault: str) -> NoReturn:
        """Raise an error that names the file and the line of a row."""
        raise UserError(f"{self.path} {self.unit} {self.lines[row]}: {fault}")

    def rows(self, task: Task) -> Rows:
        """Convert the table to the task's rows."""
        first, *rest = (list(self.columns[name]) for name in task.text_columns)
        indices = {spelling: index for index, spelling in enumerate(task.file_labels or task.labels)}
        labels: list[float] = []
        for row, cell in enumerate(self.columns[task.label_column]):
            label = _score(cell) if task.regression else indices.get(cell)
            if label is None and task.regression:
                self.refuse(row, f"{cell!r} in column {task.label_column!r} is not a finite number")
            if label is None:
                self.refuse(row, f"label {cell!r} in column {task.label_column!r} is none of {', '.join(indices)}")
            labels.append(label)
        dtype = np.float32 if task.regression else np.int64
        return Rows(first, rest[0] if rest else None, np.array(labels, dtype=dtype))


def _score(cell: Any) -> float | None:
    """Return a cell as a number, None if it is none that float32 can hold."""
    try:
        score = float(cell)
    except (TypeError, ValueError):
        return None
    return score if abs(score) <= _FLOAT32_MAX else None


def load_own_file(data: DataSpec) -> TaskData:
    """Load the rows of a user's file, with `data.eval_file` or a random tenth of them to evaluate on."""
    path = Path(data.task)
    wanted = _wanted_columns(data, path)
    if data.eval_file is not None and not data.eval_file.is_file():
        raise UserError(f"--eval-file {data.eval_file} does not exist")
    table = _read_table(path, wanted, data.regression)
    labels = () if data.regression else _classes(table, wanted[-1])
    task = Task(path.name, data.text_columns, wanted[-1], labels, metrics_of(data.task, data.regression))
    rows = table.rows(task)
    if data.eval_file is not None:
        return TaskData(task, rows, {"dev": _read_table(data.eval_file, wanted, data.regression).rows(task)})
    if len(rows) < 2:
        raise UserError(f"{path} has a single row: without --eval-file it takes two, one to train and one to evaluate")
    order = np.random.default_rng([data.data_seed, SPLIT_STREAM]).permutation(len(rows))
    dev_rows = max(1, len(rows) // 10)
    return TaskData(task, rows.take(np.sort(order[dev_rows:])), {"dev": rows.take(np.sort(order[:dev_rows]))})


def _wanted_columns(data: DataSpec, path: Path) -> tuple[str, ...]:
    """Return the text columns and the label column; where they are not given, the error lists the file's columns."""
    if not data.text_columns or not data.label_column:
        flag = "--label-column" if data.text_columns else "--text-columns with one or two columns"
        raise UserError(f"--task {path} needs {flag}; columns found: {', '.join(_READERS[_ending(path)](path, ())[0])}")
    wanted = (*data.text_columns, data.label_column)
    if len(data.text_columns) > 2:
        raise UserError(f"--text-columns takes one or two columns, not {len(data.text_columns)}")
    if len(set(wanted)) < len(wanted):
        raise UserError(f"--text-columns and --label-column must be different columns, not {', '.join(wanted)}")
    return wanted


def _read_table(path: Path, wanted: Sequence[str], regression: bool) -> Table:
    """Read the wanted columns of a user's file, the label last: texts as strings and, unless scores, labels as spelled.

    A missing cell is an error.
    """
    ending = _ending(path)
    rows = list(_READERS[ending](path, wanted)[1])
    if not rows:
        raise UserError(f"file {path} has no rows")
    lines, *cells = zip(*rows, strict=True)
    table = Table(path, dict(zip(wanted, cells, strict=True)), lines, unit="row" if ending == ".parquet" else "line")
    for name, column in table.columns.items():
        for row, cell in enumerate(column):
            if cell is None or cell != cell:  # nan, which other tools write where a cell is missing
                table.refuse(row, f"column {name!r} is empty" + ("" if cell is None else f" ({cell})"))
    *texts, label = wanted
    columns = dict(table.columns)
    for name in texts:
        columns[name] = [_text(table, row, name, cell) for row, cell in enumerate(columns[name])]
    if not regression:
        columns[label] = [_spelling(table, row, label, cell) for row, cell in enumerate(columns[label])]
    elif any(isinstance(cell, bool) for cell in columns[label]):
        raise UserError(f"{path}: column {label!r} holds true and false, which are no numbers to predict")
    return dataclasses.replace(table, columns=columns)


def _text(table: Table, row: int, name: str, cell: Any) -> str:
    if isinstance(cell, (dict, list, bytes)):
        table.refuse(row, f"column {name!r} holds {type(cell).__name__}, not text")
    text = str(cell)
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, which no tokenizer accepts
        table.refuse(row, f"column {name!r} holds half of a surrogate pair")
    return text


def _spelling(table: Table, row: int, name: str, cell: Any) -> str:
    """Spell a class, the same for the string "1", the integer 1 and the float 1.0 that other tools make of it."""
    if isinstance(cell, (dict, list, bytes)):
        table.refuse(row, f"column {name!r} holds {type(cell).__name__}, not a label")
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and math.isinf(cell):
        table.refuse(row, f"column {name!r} holds {cell}, which is no class")
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip() or table.refuse(row, f"column {name!r} is empty")


def _classes(table: Table, name: str) -> tuple[str, ...]:
    """List the distinct labels: by value where all are integers, else by spelling."""
    spellings, column = set(table.columns[name]), f"{table.path}: column {name!r}"
    if len(spellings) < 2:
        raise UserError(f"{column} holds only {spellings.pop()!r}; it takes at least two classes")
    try:
        values = {spelling: float(spelling) for spelling in spellings}
    except ValueError:
        return tuple(sorted(spellings))
    for row, spelling in enumerate(table.columns[name]):
        if not math.isfinite(values[spelling]):
            table.refuse(row, f"column {name!r} holds {spelling} among numbers, which is no class")
    fractions = sorted(spelling for spelling in spellings if not _INTEGER.fullmatch(spelling))
    if fractions:
        raise UserError(f"{column} holds numbers such as {fractions[0]}; add --regression to predict them")
    return tuple(sorted(spellings, key=lambda spelling: (int(spelling), spelling)))


def read_text(path: Path) -> str:
    """Read a UTF-8 file without its byte order mark."""
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise UserError(f"file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        place = f"{path} line {line}: byte {byte:#04x} at position {error.start}"
        raise UserError(f"{place} is not UTF-8; save the file as UTF-8") from None
    if not text.strip():
        raise UserError(f"file {path} is empty")
    return text


def require_columns(source: Path | str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a file or data set that lacks a wanted column or has it twice."""
    for name in wanted:
        count = list(names).count(name)
        if count != 1:
            many = "more than one" if count else "no"
            raise UserError(f"{source} has {many} column {name!r}; columns found: {', '.join(names)}")


def _ending(path: Path) -> str:
    """Return the ending of a file that can be read, in lower case."""
    ending = path.suffix.lower()
    if ending not in _READERS:
        raise UserError(f"file {path} must end in one of {', '.join(_READERS)}")
    if not path.is_file():
        raise UserError(f"file {path} does not exist" if not path.exists() else f"{path} is not a file")
    return ending


Found = tuple[list[str], Iterator[tuple[Any, ...]]]
"""The columns of a file, and for each row the line it starts on and its cells of the wanted columns."""


def _read_separated(path: Path, wanted: Sequence[str]) -> Found:
    text, tabs = read_text(path), path.suffix.lower() == ".tsv"
    lines = enumerate((row.removesuffix("\r").split("\t") for row in text.split("\n")), start=1)
    rows = ((line, fields) for line, fields in (lines if tabs else _csv_rows(path, text)) if fields and fields != [""])
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if not header:
        raise UserError(f"file {path} is empty")
    require_columns(path, header, wanted)

    def cells() -> Iterator[tuple[Any, ...]]:
        indices = [header.index(name) for name in wanted]
        for line, fields in rows:
            if len(fields) != len(header):
                note = "; a .tsv has no quoting, a .csv has" if tabs else ""
                raise UserError(f"{path} line {line} has {len(fields)} fields instead of {len(header)}{note}")
            yield line, *(fields[index] or None for index in indices)

    return header, cells()


def _csv_rows(path: Path, text: str) -> Generator[tuple[int, list[str]], None, None]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    default = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the csv module's own limit is 128 KiB per cell
    line = 1
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} line {line}: the row that starts here is not valid CSV: {error}") from None
    finally:
        csv.field_size_limit(default)


def _read_jsonl(path: Path, wanted: Sequence[str]) -> Found:
    objects = _json_objects(path)
    first = next(objects)

    def cells() -> Iterator[tuple[Any, ...]]:
        for line, value in itertools.chain([first], objects):
            for name in wanted:
                if name not in value:
                    raise UserError(f"{path} line {line} has no key {name!r}; keys found: {', '.join(value)}")
            yield line, *(value[name] for name in wanted)

    return list(first[1]), cells()


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


def _read_parquet(path: Path, wanted: Sequence[str]) -> Found:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        require_columns(path, file.schema_arrow.names, wanted)
        content = file.read(columns=list(wanted))
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"file {path} cannot be read as parquet: {str(error).splitlines()[0]}") from None
    columns = (content.column(name).to_pylist() for name in wanted)
    return file.schema_arrow.names, zip(itertools.count(1), *columns)


_READERS: dict[str, Callable[[Path, Sequence[str]], Found]] = {
    ".csv": _read_separated,
    ".tsv": _read_separated,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
