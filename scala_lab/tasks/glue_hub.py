"""GLUE from the hub through `datasets`, without minutes of retries on a machine that has no network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError
from scala_lab.hub import hub_reachable
from scala_lab.tasks.registry import Task
from scala_lab.tasks.rows import Rows, TaskData

if TYPE_CHECKING:
    import datasets

HUB_DATASET = "nyu-mll/glue"
"""Name on the hub, or a local folder laid out like it."""

LABEL_COLUMN = "label"
_SPLITS = {"dev": "validation"}
_MNLI_SPLITS = {"dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"}


def load_from_hub(task: Task) -> TaskData:
    """The task's rows from the hub, or from an earlier download where the hub cannot be reached."""
    splits = _MNLI_SPLITS if task.name == "mnli" else _SPLITS
    loaded = _load_splits(task, ["train", *splits.values()])
    train, *evals = (_as_rows(task, split) for split in loaded)
    return TaskData(task, train, dict(zip(splits, evals, strict=True)))


@contextmanager
def offline() -> Iterator[None]:
    """Have `datasets` and `huggingface_hub` look only at what was downloaded before."""
    import datasets
    import huggingface_hub

    places: list[Any] = [datasets.config, huggingface_hub.constants]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _load_splits(task: Task, splits: list[str]) -> list[datasets.Dataset]:
    import datasets

    local = Path(HUB_DATASET).is_dir()
    if local or (not datasets.config.HF_HUB_OFFLINE and hub_reachable()):
        try:
            return datasets.load_dataset(HUB_DATASET, task.name, split=splits)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = _first_line(error)
            raise UserError(f"{task.name} cannot be loaded from {HUB_DATASET} ({reason}); {_ADVICE}") from None
    try:
        with offline():
            return datasets.load_dataset(HUB_DATASET, task.name, split=splits)
    except (OSError, ValueError, datasets.exceptions.DatasetsError):
        raise UserError(f"{task.name} is not in the local cache and the hub cannot be reached; {_ADVICE}") from None


_ADVICE = (
    "without the hub, give --data-dir with a folder in the GLUE layout, set HF_HOME to a cache that holds "
    f"{HUB_DATASET}, or train on an embedded task such as mini-sst2"
)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _as_rows(task: Task, split: datasets.Dataset) -> Rows:
    """Rows with labels in the order of `Task.labels`, whatever order the hub's class names have."""
    columns = task.hub_columns or task.text_columns
    missing = [name for name in (*columns, LABEL_COLUMN) if name not in split.column_names]
    if missing:
        raise UserError(
            f"{HUB_DATASET} {task.name} has no column {missing[0]!r}; columns found: {', '.join(split.column_names)}"
        )
    first, *rest = (list(split[name]) for name in columns)
    values = np.array(split[LABEL_COLUMN])
    if task.regression:
        labels: np.ndarray = values.astype(np.float32)
        valid = np.isfinite(labels)
    else:
        names = getattr(split.features[LABEL_COLUMN], "names", None) or task.labels
        if sorted(names) != sorted(task.labels):
            raise UserError(f"{HUB_DATASET} {task.name} has classes {', '.join(names)}, not {', '.join(task.labels)}")
        order = np.array([task.labels.index(name) for name in names], dtype=np.int64)
        valid = (values >= 0) & (values < len(order))
        labels = order[np.where(valid, values, 0)]
    if not valid.all():
        row = int(np.argmin(valid))
        raise UserError(f"{HUB_DATASET} {task.name} row {row}: {values[row]} is not a label of {task.name}")
    return Rows(first, rest[0] if rest else None, labels)
