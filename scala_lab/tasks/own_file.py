"""A task from a user's own file: columns as the user names them, classes as the file spells them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError
from scala_lab.tasks.own_tables import column_names, read_own_table
from scala_lab.tasks.registry import Task
from scala_lab.tasks.rows import TaskData
from scala_lab.tasks.table import Table, columns_found

if TYPE_CHECKING:
    from scala_lab.spec import DataSpec

DEV_SHARE = 10
"""Without a second file one row in this many is kept apart to evaluate on."""

_SPLIT_STREAM = 1
"""Keeps the draw of those rows apart from the other draws made with the same data seed."""


def load_own_file(data: DataSpec) -> TaskData:
    """The rows of `data.task`, with `data.eval_file` or a seeded tenth of them to evaluate on."""
    path = Path(data.task)
    wanted = _wanted_columns(data, path)
    if data.eval_file is not None and not data.eval_file.is_file():
        raise UserError(f"--eval-file {data.eval_file} does not exist")
    table = _clean(read_own_table(path, wanted), data)
    task = Task(
        name=path.name,
        text_columns=data.text_columns,
        label_column=wanted[-1],
        labels=() if data.regression else _classes(table, wanted[-1]),
        metrics=("pearson", "spearman") if data.regression else ("accuracy",),
    )
    rows = table.rows(task)
    if data.eval_file is not None:
        return TaskData(task, rows, {"dev": _clean(read_own_table(data.eval_file, wanted), data).rows(task)})
    if len(rows) < 2:
        raise UserError(f"{path} has a single row: without --eval-file it takes two, one to train and one to evaluate")
    order = np.random.default_rng([data.data_seed, _SPLIT_STREAM]).permutation(len(rows))
    cut = max(1, len(rows) // DEV_SHARE)
    return TaskData(task, rows.take(np.sort(order[cut:])), {"dev": rows.take(np.sort(order[:cut]))})


def _wanted_columns(data: DataSpec, path: Path) -> tuple[str, ...]:
    """Text columns and label column, checked; what is not given is an error that names what there is."""
    if not data.text_columns:
        found = columns_found(column_names(path))
        raise UserError(f"--task {path} needs --text-columns with one or two columns; {found}")
    if not data.label_column:
        raise UserError(f"--task {path} needs --label-column; {columns_found(column_names(path))}")
    wanted = (*data.text_columns, data.label_column)
    if len(data.text_columns) > 2:
        raise UserError(f"--text-columns takes one or two columns, not {len(data.text_columns)}")
    if len(set(wanted)) < len(wanted):
        raise UserError(f"--text-columns and --label-column must be different columns, not {', '.join(wanted)}")
    return wanted


def _clean(table: Table, data: DataSpec) -> Table:
    """The table with texts as strings and, for classes, labels as their spelling."""
    columns = {name: _texts(table, name) for name in data.text_columns}
    label = data.label_column or ""
    cells = table.columns[label]
    if data.regression:
        if any(isinstance(cell, bool) for cell in cells):
            raise UserError(f"{table.path}: column {label!r} holds true and false, which are no numbers to predict")
        columns[label] = list(cells)
    else:
        columns[label] = [_spelling(table, row, label) for row in range(len(table))]
    return dataclasses.replace(table, columns=columns)


def _texts(table: Table, name: str) -> list[Any]:
    texts = []
    for row, cell in enumerate(table.columns[name]):
        if isinstance(cell, (dict, list, bytes)):
            raise UserError(f"{table.where(row)}: column {name!r} holds {type(cell).__name__}, not text")
        text = cell if isinstance(cell, str) else str(cell)
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, which no tokenizer accepts
            raise UserError(f"{table.where(row)}: column {name!r} holds half of a surrogate pair") from None
        texts.append(text)
    return texts


def _spelling(table: Table, row: int, name: str) -> str:
    """A class as text, the same for the string "1", the integer 1 and the float 1.0 that other tools make of it."""
    cell = table.columns[name][row]
    if isinstance(cell, (dict, list, bytes)):
        raise UserError(f"{table.where(row)}: column {name!r} holds {type(cell).__name__}, not a label")
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and math.isinf(cell):
        raise UserError(f"{table.where(row)}: column {name!r} holds {cell}, which is no class")
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    text = str(cell).strip()
    if not text:
        raise UserError(f"{table.where(row)}: column {name!r} is empty")
    return text


def _classes(table: Table, name: str) -> tuple[str, ...]:
    """The distinct labels in order: by value where all are whole numbers, else by spelling."""
    spellings = set(table.columns[name])
    if len(spellings) < 2:
        raise UserError(f"{table.path}: column {name!r} holds only {spellings.pop()!r}; it takes at least two classes")
    if all(_is_number(spelling) for spelling in spellings):
        for row, spelling in enumerate(table.columns[name]):
            if not math.isfinite(float(spelling)):
                raise UserError(
                    f"{table.where(row)}: column {name!r} holds {spelling} among numbers, which is no class"
                )
        fractions = sorted(spelling for spelling in spellings if not _is_whole(spelling))
        if fractions:
            raise UserError(
                f"{table.path}: column {name!r} holds numbers such as {fractions[0]}; add --regression to predict them"
            )
        return tuple(sorted(spellings, key=lambda spelling: (int(spelling), spelling)))
    return tuple(sorted(spellings))


def _is_number(spelling: str) -> bool:
    try:
        float(spelling)
    except ValueError:
        return False
    return True


def _is_whole(spelling: str) -> bool:
    try:
        int(spelling)
    except ValueError:
        return False
    return True
