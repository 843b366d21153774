"""Where a task's rows come from (generator, GLUE folder, hub, the user's own file), and which of them a run uses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.data.glue import load_from_hub, load_glue_folder
from scala_lab.data.tables import Table, TaskData, column_names, columns_found, read_own_table
from scala_lab.data.tasks import TASKS, Task, find_task
from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.config import DataSpec

_SPLIT_STREAM, _TRAIN_STREAM, _EVAL_STREAM = 1, 2, 3
"""Second entry of the seed, so that the draws made with one data seed are independent."""

GLUE_ROWS: Mapping[str, tuple[int, int]] = {
    "mnli": (392_702, 9_815 + 9_832),
    "qnli": (104_743, 5_463),
    "qqp": (363_846, 40_430),  # without the malformed rows of the first release
    "sst2": (67_349, 872),
    "stsb": (5_749, 1_500),
    "mrpc": (3_668, 408),
    "rte": (2_490, 277),
    "cola": (8_551, 1_043),
}
"""Rows of the published train split and of all its evaluation splits together."""


def published_rows(task: str) -> tuple[int, int] | None:
    """Return the train and evaluation rows of a GLUE or embedded task without loading it, None for a user's file."""
    if task in TASKS and TASKS[task].embedded:
        from scala_lab.data.synthetic.generation import DEV_ROWS, TRAIN_ROWS

        return TRAIN_ROWS, DEV_ROWS
    return GLUE_ROWS.get(task)


def load_task(data: DataSpec) -> TaskData:
    """Load all rows of the task that `data` names; an option that the task's source would ignore is an error."""
    path = Path(data.task)
    if data.task not in TASKS and (path.suffix or path.name != data.task or path.is_file()):
        if data.data_dir is not None:
            raise UserError(f"--data-dir is for the GLUE tasks; --task {data.task} is a file of its own")
        return _load_own_file(data)
    task = find_task(data.task)
    for option in ("text_columns", "label_column", "eval_file", "regression"):
        if getattr(data, option):
            flag = f"--{option.replace('_', '-')}"
            raise UserError(f"{flag} is for a file of your own; {data.task} has its columns and splits built in")
    if task.embedded:
        if data.data_dir is not None:
            glue = task.name.removeprefix("mini-")
            raise UserError(
                f"--task {task.name} is generated and reads no --data-dir; for that folder give --task {glue}"
            )
        from scala_lab.data.synthetic.generation import generate

        rows = generate(task.name)
        return TaskData(task, rows["train"], {"dev": rows["dev"]})
    if data.data_dir is not None:
        return load_glue_folder(task, data.data_dir)
    return load_from_hub(task)


@dataclass(frozen=True)
class Selection:
    """Row indices into a task's data; `evals` by split, in the order of the data, headline first."""

    train: np.ndarray
    heldout: np.ndarray
    evals: Mapping[str, np.ndarray]


def select_rows(data: TaskData, spec: DataSpec) -> Selection:
    """Draw rows without replacement, as a function of the data seed alone.

    One permutation of the train rows serves both sets: training rows are its beginning and held-out rows its end.
    So a smaller training set is the beginning of a larger one, and the held-out rows are the same for every
    training size and never trained on. Evaluation rows keep the order they have in the data.
    """
    rows, heldout = len(data.train), spec.heldout_samples
    order = np.random.default_rng([spec.data_seed, _TRAIN_STREAM]).permutation(rows)
    wanted = 1 if spec.train_samples is None else spec.train_samples
    if wanted + heldout > rows:
        if not heldout:
            raise UserError(f"--train-samples {wanted}: {data.task.name} has {rows} train rows")
        train = "at least one row to train on" if spec.train_samples is None else f"--train-samples {wanted}"
        raise UserError(f"--heldout-samples {heldout} and {train}: {data.task.name} has {rows} train rows for both")
    count = rows - heldout if spec.train_samples is None else spec.train_samples
    evals = {}
    for name, split in data.evals.items():
        if spec.eval_samples is not None and spec.eval_samples > len(split):
            raise UserError(f"--eval-samples {spec.eval_samples}: {data.task.name} has {len(split)} rows in {name}")
        permutation = np.random.default_rng([spec.data_seed, _EVAL_STREAM]).permutation(len(split))
        evals[name] = np.sort(permutation[: spec.eval_samples])
    return Selection(order[:count], order[rows - heldout :], evals)


def _load_own_file(data: DataSpec) -> TaskData:
    """Load the rows of a user's file, with `data.eval_file` or a random tenth of them to evaluate on."""
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
    dev_rows = max(1, len(rows) // 10)
    return TaskData(task, rows.take(np.sort(order[dev_rows:])), {"dev": rows.take(np.sort(order[:dev_rows]))})


def _wanted_columns(data: DataSpec, path: Path) -> tuple[str, ...]:
    """Return the text columns and the label column; where they are not given, the error lists the file's columns."""
    if not data.text_columns:
        available = columns_found(column_names(path))
        raise UserError(f"--task {path} needs --text-columns with one or two columns; {available}")
    if not data.label_column:
        raise UserError(f"--task {path} needs --label-column; {columns_found(column_names(path))}")
    wanted = (*data.text_columns, data.label_column)
    if len(data.text_columns) > 2:
        raise UserError(f"--text-columns takes one or two columns, not {len(data.text_columns)}")
    if len(set(wanted)) < len(wanted):
        raise UserError(f"--text-columns and --label-column must be different columns, not {', '.join(wanted)}")
    return wanted


def _clean(table: Table, data: DataSpec) -> Table:
    """Convert texts to strings and, for classification, labels to their spelling."""
    label = data.label_column or ""
    columns: dict[str, list[Any]] = {
        name: [_text(table, row, name, cell) for row, cell in enumerate(table.columns[name])]
        for name in data.text_columns
    }
    cells = table.columns[label]
    if data.regression:
        if any(isinstance(cell, bool) for cell in cells):
            raise UserError(f"{table.path}: column {label!r} holds true and false, which are no numbers to predict")
        columns[label] = list(cells)
    else:
        columns[label] = [_spelling(table, row, label, cell) for row, cell in enumerate(cells)]
    return dataclasses.replace(table, columns=columns)


def _text(table: Table, row: int, name: str, cell: Any) -> str:
    if isinstance(cell, (dict, list, bytes)):
        raise UserError(f"{table.where(row)}: column {name!r} holds {type(cell).__name__}, not text")
    text = cell if isinstance(cell, str) else str(cell)
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, which no tokenizer accepts
        raise UserError(f"{table.where(row)}: column {name!r} holds half of a surrogate pair") from None
    return text


def _spelling(table: Table, row: int, name: str, cell: Any) -> str:
    """Spell a class, the same for the string "1", the integer 1 and the float 1.0 that other tools make of it."""
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
    """List the distinct labels: by value where all are integers, else by spelling."""
    spellings = set(table.columns[name])
    if len(spellings) < 2:
        raise UserError(f"{table.path}: column {name!r} holds only {spellings.pop()!r}; it takes at least two classes")
    if not all(_converts(float, spelling) for spelling in spellings):
        return tuple(sorted(spellings))
    for row, spelling in enumerate(table.columns[name]):
        if not math.isfinite(float(spelling)):
            raise UserError(f"{table.where(row)}: column {name!r} holds {spelling} among numbers, which is no class")
    fractions = sorted(spelling for spelling in spellings if not _converts(int, spelling))
    if fractions:
        raise UserError(
            f"{table.path}: column {name!r} holds numbers such as {fractions[0]}; add --regression to predict them"
        )
    return tuple(sorted(spellings, key=lambda spelling: (int(spelling), spelling)))


def _converts(convert: Callable[[str], Any], spelling: str) -> bool:
    try:
        convert(spelling)
    except ValueError:
        return False
    return True
