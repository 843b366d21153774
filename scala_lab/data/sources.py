"""Where a task's rows come from (generator, GLUE folder, hub, the user's own file), and which of them a run uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from scala_lab.config import DataSpec
from scala_lab.data.tasks import EVAL_STREAM, TASKS, TRAIN_STREAM, TaskData, find_task
from scala_lab.errors import UserError

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
        from scala_lab.data.tables import load_own_file

        return load_own_file(data)
    task = find_task(data.task)
    for option in ("text_columns", "label_column", "eval_file", "regression"):
        if getattr(data, option):
            flag = f"--{option.replace('_', '-')}"
            raise UserError(f"{flag} is for a file of your own; {data.task} has its columns and splits built in")
    if task.embedded:
        if data.data_dir is not None:
            glue = f"for that folder give --task {task.name.removeprefix('mini-')}"
            raise UserError(f"--task {task.name} is generated and reads no --data-dir; {glue}")
        from scala_lab.data.synthetic.generation import generate

        rows = generate(task.name)
        return TaskData(task, rows.pop("train"), rows)
    from scala_lab.data.glue import load_from_hub, load_glue_folder

    return load_from_hub(task) if data.data_dir is None else load_glue_folder(task, data.data_dir)


def all_rows(data: DataSpec) -> DataSpec:
    """Return the same task without any choice of rows."""
    none: dict[str, Any] = {"heldout_samples": 0, "tuning_samples": 0, "data_seed": 0, "evaluate": "epochs"}
    return replace(data, train_samples=None, eval_samples=None, **none)


@dataclass(frozen=True)
class Selection:
    """Row indices into a task's data; `evals` by split, in the order of the data, headline first."""

    train: np.ndarray
    kept_apart: Mapping[str, np.ndarray]  # train rows that are not trained on: `tuning` and `heldout`, where asked for
    evals: Mapping[str, np.ndarray]


def select_rows(data: TaskData, spec: DataSpec) -> Selection:
    """Draw rows without replacement, as a function of the data seed alone.

    Training rows are the beginning of one permutation; held-out rows are taken from its end, then tuning rows. So a
    smaller training set is the beginning of a larger one. A text that stands word for word in a longer training text,
    as the phrases of SST-2 do, is neither a held-out nor a tuning row: it would not be new to the model. Evaluation
    rows keep the order they have in the data.
    """
    rows, asked = len(data.train), {"heldout": spec.heldout_samples, "tuning": spec.tuning_samples}
    order = np.random.default_rng([spec.data_seed, TRAIN_STREAM]).permutation(rows)
    count = rows - sum(asked.values()) if spec.train_samples is None else spec.train_samples
    if count < 1 or count + sum(asked.values()) > rows:
        flags = [f"--{name}-samples {number}" for name, number in asked.items() if number]
        flags.append("at least one row to train on" if spec.train_samples is None else f"--train-samples {count}")
        raise UserError(f"{' and '.join(flags)}: {data.task.name} has {rows} train rows")
    spare = order[count:][::-1]
    if any(asked.values()) and data.train.second is None:
        spare = spare[~_contained(data.train.first, spare, order[:count])]
        if len(spare) < sum(asked.values()):
            raise UserError(
                f"{data.task.name} has {len(spare)} train rows beside the training rows that do not stand in one of "
                f"them, fewer than the {sum(asked.values())} asked for to evaluate on"
            )
    apart = np.split(spare, np.cumsum(list(asked.values())))
    kept_apart = {name: np.sort(rows) for name, rows in zip(asked, apart, strict=False) if len(rows)}
    evals = {}
    for name, split in data.evals.items():
        if spec.eval_samples is not None and spec.eval_samples > len(split):
            raise UserError(f"--eval-samples {spec.eval_samples}: {data.task.name} has {len(split)} rows in {name}")
        permutation = np.random.default_rng([spec.data_seed, EVAL_STREAM]).permutation(len(split))
        evals[name] = np.sort(permutation[: spec.eval_samples])
    return Selection(order[:count], kept_apart, evals)


def _contained(texts: Sequence[str], rows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return which of the rows' texts are a run of whole words of a text of `inside`."""
    phrases = [tuple(texts[row].split()) for row in rows]
    unseen, lengths, seen = set(phrases), sorted({len(phrase) for phrase in phrases}), set()
    for row in inside:
        words = tuple(texts[row].split())
        for length in takewhile(len(words).__ge__, lengths):
            seen.update(unseen.intersection(words[at : at + length] for at in range(len(words) - length + 1)))
    return np.array([phrase in seen for phrase in phrases], dtype=bool)
