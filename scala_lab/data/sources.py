"""Where a task's rows come from (generator, GLUE folder, hub, the user's own file), and which of them a run uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.data.tasks import EVAL_STREAM, TASKS, TRAIN_STREAM, TaskData, find_task
from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.config import DataSpec

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
        return TaskData(task, rows["train"], {"dev": rows["dev"]})
    from scala_lab.data.glue import load_from_hub, load_glue_folder

    return load_from_hub(task) if data.data_dir is None else load_glue_folder(task, data.data_dir)


@dataclass(frozen=True)
class Selection:
    """Row indices into a task's data; `evals` by split, in the order of the data, headline first."""

    train: np.ndarray
    heldout: np.ndarray
    evals: Mapping[str, np.ndarray]


def select_rows(data: TaskData, spec: DataSpec) -> Selection:
    """Draw rows without replacement, as a function of the data seed alone.

    Training rows are the beginning of one permutation and held-out rows its end. So a smaller training set is the
    beginning of a larger one, and the held-out rows are the same for every training size and never trained on.
    Evaluation rows keep the order they have in the data.
    """
    rows, heldout = len(data.train), spec.heldout_samples
    order = np.random.default_rng([spec.data_seed, TRAIN_STREAM]).permutation(rows)
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
        permutation = np.random.default_rng([spec.data_seed, EVAL_STREAM]).permutation(len(split))
        evals[name] = np.sort(permutation[: spec.eval_samples])
    return Selection(order[:count], order[rows - heldout :], evals)
