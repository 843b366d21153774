"""GLUE from a folder in the classic layout, or from the hub through `datasets`.

A folder in the classic GLUE layout: one sub-folder per task with tab-separated files.

Cells are never quoted, so a quote is part of the text. Columns are found by header name, which is why both the
wide files of the first release and slimmer copies of them load.

GLUE from the hub through `datasets`, without minutes of retries on a machine that has no network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.data.tables import Rows, Table, TaskData, read_text, require_columns
from scala_lab.data.tasks import Task
from scala_lab.errors import UserError
from scala_lab.hub import hub_reachable

if TYPE_CHECKING:
    import datasets


SKIPPED_PER_ROWS = 1000
"""Up to one malformed row in this many is passed over: the published QQP file has a few."""

NO_LABEL = "-"
"""How the inference tasks mark a row on which annotators did not agree."""

Files = tuple[str, dict[str, str]]
"""The train file, and evaluation files by the name of their split."""

_USUAL: tuple[Files, ...] = (("train.tsv", {"dev": "dev.tsv"}),)
_FILES: dict[str, tuple[Files, ...]] = {
    "mnli": (("train.tsv", {"dev_matched": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"}),),
    # GLUE's own dev rows were cut out of the original train file: the two must not be mixed.
    "mrpc": (*_USUAL, ("msr_paraphrase_train.txt", {"test": "msr_paraphrase_test.txt"})),
}
_OPTIONAL = {"dev_mismatched.tsv"}


def load_glue_folder(task: Task, data_dir: Path) -> TaskData:
    """The task's rows from its sub-folder of `data_dir`."""
    folder = data_dir / task.folder
    if not data_dir.is_dir():
        raise UserError(f"data folder {data_dir} does not exist")
    if not folder.is_dir():
        raise UserError(f"data folder {data_dir} has no sub-folder {task.folder!r} for {task.name}; {_there(data_dir)}")
    train_file, eval_files = _choose_files(task, folder)
    train = read_glue_table(task, folder / train_file)
    evals = {split: read_glue_table(task, folder / name) for split, name in eval_files.items()}
    skipped = {table.path.name: table.skipped for table in (train, *evals.values()) if table.skipped}
    return TaskData(task, train.rows(task), {split: table.rows(task) for split, table in evals.items()}, skipped)


def _there(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return "found there: " + (", ".join(names) if names else "nothing")


def _choose_files(task: Task, folder: Path) -> Files:
    """The first set of files that is complete."""
    choices = _FILES.get(task.name, _USUAL)
    for train_file, eval_files in choices:
        present = {split: name for split, name in eval_files.items() if (folder / name).is_file()}
        missing = set(eval_files.values()) - set(present.values()) - _OPTIONAL
        if (folder / train_file).is_file() and not missing:
            return train_file, present
    sets = [
        " and ".join([train, *(name for name in evals.values() if name not in _OPTIONAL)]) for train, evals in choices
    ]
    raise UserError(f"folder {folder} must hold {', or '.join(sets)}; {_there(folder)}")


def read_glue_table(task: Task, path: Path) -> Table:
    """The task's columns of one file, without malformed rows: wrong number of fields, or marked as unlabelled."""
    # Only \n ends a line: str.splitlines would also cut at characters that occur inside sentences.
    lines = read_text(path).rstrip("\r\n").replace("\r\n", "\n").split("\n")
    header: Sequence[str] = task.header or [name.strip() for name in lines[0].split("\t")]
    first_row = 0 if task.header else 1
    wanted = (*task.text_columns, task.label_column)
    require_columns(path, header, wanted)
    rows = [line.split("\t") for line in lines[first_row:]]
    if not rows:
        raise UserError(f"file {path} has a header but no rows")
    label = list(header).index(task.label_column)
    good = [
        number
        for number, fields in enumerate(rows)
        if len(fields) == len(header) and (task.regression or fields[label].strip() != NO_LABEL)
    ]
    skipped = len(rows) - len(good)
    if skipped * SKIPPED_PER_ROWS > len(rows):
        kept = set(good)
        bad = next(number for number in range(len(rows)) if number not in kept)
        fault = (
            f"{len(rows[bad])} fields instead of {len(header)}"
            if len(rows[bad]) != len(header)
            else f"label {NO_LABEL!r} in column {task.label_column!r}"
        )
        raise UserError(
            f"{path} line {bad + first_row + 1} has {fault}, and {skipped} of {len(rows)} rows are malformed: "
            f"more than the 1 in {SKIPPED_PER_ROWS} that are passed over"
        )
    if skipped:
        rows = [rows[number] for number in good]
    columns = {name: [fields[at] for fields in rows] for at, name in enumerate(header) if name in wanted}
    columns[task.label_column] = [cell.strip() for cell in columns[task.label_column]]
    return Table(path, columns, [number + first_row + 1 for number in good], skipped)


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
