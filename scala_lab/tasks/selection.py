"""Which rows a run trains on and which it is judged on, as a function of the data seed alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.errors import UserError
from scala_lab.tasks.rows import TaskData

if TYPE_CHECKING:
    from scala_lab.spec import DataSpec

_TRAIN_STREAM, _EVAL_STREAM = 2, 3
"""Keep the draws made with one data seed apart from each other."""


@dataclass(frozen=True)
class Selection:
    """Row indices into a task's data; `evals` by split, in the order of the data, headline first."""

    train: np.ndarray
    heldout: np.ndarray
    evals: Mapping[str, np.ndarray]


def select_rows(data: TaskData, spec: DataSpec) -> Selection:
    """Draw rows without replacement.

    One permutation of the train rows serves both sets: training rows are its beginning and held-out rows its end.
    So a smaller training set is the beginning of a larger one, and the held-out rows are the same for every
    training size and never trained on. Evaluation rows keep the order they have in the data.
    """
    rows = len(data.train)
    order = np.random.default_rng([spec.data_seed, _TRAIN_STREAM]).permutation(rows)
    heldout = spec.heldout_samples
    wanted = 1 if spec.train_samples is None else spec.train_samples
    if wanted + heldout > rows:
        if not heldout:
            raise UserError(f"--train-samples {wanted}: {data.task.name} has {rows} train rows")
        train = "at least one row to train on" if spec.train_samples is None else f"--train-samples {wanted}"
        raise UserError(f"--heldout-samples {heldout} and {train}: {data.task.name} has {rows} train rows for both")
    count = rows - heldout if spec.train_samples is None else spec.train_samples
    evals = {name: _draw(data, name, spec) for name in data.evals}
    return Selection(order[:count], order[rows - heldout :], evals)


def _draw(data: TaskData, name: str, spec: DataSpec) -> np.ndarray:
    rows = len(data.evals[name])
    if spec.eval_samples is None:
        return np.arange(rows)
    if spec.eval_samples > rows:
        raise UserError(f"--eval-samples {spec.eval_samples}: {data.task.name} has {rows} rows in {name}")
    order = np.random.default_rng([spec.data_seed, _EVAL_STREAM]).permutation(rows)
    return np.sort(order[: spec.eval_samples])
