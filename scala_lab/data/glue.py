"""GLUE from a folder in the classic layout, or from the hub through `datasets`.

The classic layout is one sub-folder per task with tab-separated files. Cells are never quoted, so a quote is part of
the text. Columns are identified by header name, so both the wide files of the first release and slimmer copies load.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.data.tables import Table, read_text, require_columns
from scala_lab.data.tasks import Rows, Task, TaskData
from scala_lab.errors import UserError
from scala_lab.hub import hub_reachable

if TYPE_CHECKING:
    import datasets

ROWS_PER_SKIPPED = 1000  # at most one malformed row in this many is left out: the published QQP file has a few
NO_LABEL = "-"  # of rows of the inference tasks on which annotators did not agree


def load_glue_folder(task: Task, data_dir: Path) -> TaskData:
    """Load the task's rows from its sub-folder of `data_dir`."""
    folder = data_dir / task.folder
    if not data_dir.is_dir():
        raise UserError(f"data folder {data_dir} does not exist")
    if not folder.is_dir():
        content = _list_folder(data_dir)
        raise UserError(f"data folder {data_dir} has no sub-folder {task.folder!r} for {task.name}; {content}")
    tables = {split: _read_table(task, folder / name) for split, name in _choose_files(task, folder).items()}
    rows = {split: table.rows(task) for split, table in tables.items()}
    skipped = {table.path.name: table.skipped for table in tables.values() if table.skipped}
    return TaskData(task, rows.pop("train"), rows, skipped)


def _list_folder(folder: Path) -> str:
    return "found there: " + (", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing")


def _choose_files(task: Task, folder: Path) -> dict[str, str]:
    """Return the task's files by split, of which `train` and the one after it must be there."""
    choices = [{split: f"{split}.tsv" for split in ("train", *_eval_splits(task))}]
    if task.name == "mrpc":
        # GLUE's own dev rows were cut out of the original train file: the two must not be mixed.
        choices.append({"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"})
    for files in choices:
        present = {split: name for split, name in files.items() if (folder / name).is_file()}
        if list(present)[:2] == list(files)[:2]:
            return present
    sets = ", or ".join(" and ".join(list(files.values())[:2]) for files in choices)
    raise UserError(f"folder {folder} must hold {sets}; {_list_folder(folder)}")


def _eval_splits(task: Task) -> list[str]:
    return ["dev_matched", "dev_mismatched"] if task.name == "mnli" else ["dev"]


def _read_table(task: Task, path: Path) -> Table:
    """Read the task's columns of one file without malformed rows: wrong number of fields, or marked as unlabelled."""
    # Only \n ends a line: str.splitlines would also cut at characters that occur inside sentences.
    lines = read_text(path).rstrip("\r\n").replace("\r\n", "\n").split("\n")
    header: Sequence[str] = task.header or [name.strip() for name in lines[0].split("\t")]
    first_line = 1 if task.header else 2
    wanted = (*task.text_columns, task.label_column)
    require_columns(path, header, wanted)
    rows = [line.split("\t") for line in lines[first_line - 1 :]]
    if not rows:
        raise UserError(f"file {path} has a header but no rows")
    label = list(header).index(task.label_column)
    faults = {}
    for row, fields in enumerate(rows):
        if len(fields) != len(header):
            faults[row] = f"{len(fields)} fields instead of {len(header)}"
        elif fields[label].strip() == NO_LABEL and not task.regression:
            faults[row] = f"label {NO_LABEL!r} in column {task.label_column!r}"
    if len(faults) * ROWS_PER_SKIPPED > len(rows):
        first = min(faults)
        raise UserError(
            f"{path} line {first + first_line} has {faults[first]}, and {len(faults)} of {len(rows)} rows are "
            f"malformed: more than the 1 in {ROWS_PER_SKIPPED} that are passed over"
        )
    good = [row for row in range(len(rows)) if row not in faults]
    columns = {name: [rows[row][index] for row in good] for index, name in enumerate(header) if name in wanted}
    columns[task.label_column] = [cell.strip() for cell in columns[task.label_column]]
    return Table(path, columns, [row + first_line for row in good], len(faults))


HUB_DATASET = "nyu-mll/glue"  # name on the hub, or a local folder laid out like it


def load_from_hub(task: Task) -> TaskData:
    """Load the task's rows from the hub, or from an earlier download where the hub cannot be reached."""
    splits = _eval_splits(task)
    loaded = _load_splits(task, ["train", *(split.replace("dev", "validation") for split in splits)])
    train, *evals = (_as_rows(task, split) for split in loaded)
    return TaskData(task, train, dict(zip(splits, evals, strict=True)))


def _load_splits(task: Task, splits: list[str]) -> list[datasets.Dataset]:
    import datasets
    import huggingface_hub

    online = Path(HUB_DATASET).is_dir() or (not datasets.config.HF_HUB_OFFLINE and hub_reachable())
    restricted: list[Any] = [] if online else [datasets.config, huggingface_hub.constants]
    try:
        with ExitStack() as stack:
            for module in restricted:  # to earlier downloads, without minutes of retries
                stack.callback(setattr, module, "HF_HUB_OFFLINE", module.HF_HUB_OFFLINE)
                module.HF_HUB_OFFLINE = True
            return datasets.load_dataset(HUB_DATASET, task.name, split=splits)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        failure = f"cannot be loaded from {HUB_DATASET} ({reason})"
        if not online:
            failure = "is not in the local cache and the hub cannot be reached"
        raise UserError(
            f"{task.name} {failure}; without the hub, give --data-dir with a folder in the GLUE layout, set HF_HOME to "
            f"a cache that holds {HUB_DATASET}, or train on an embedded task such as mini-sst2"
        ) from None


def _as_rows(task: Task, split: datasets.Dataset) -> Rows:
    """Convert a split of the hub, with labels in the order of `Task.labels` whatever order the hub's classes have."""
    columns = task.hub_columns or task.text_columns
    require_columns(f"{HUB_DATASET} {task.name}", split.column_names, (*columns, "label"))
    first, *rest = (list(split[name]) for name in columns)
    values = np.array(split["label"])
    if task.regression:
        labels: np.ndarray = values.astype(np.float32)
        valid = np.isfinite(labels)
    else:
        names = getattr(split.features["label"], "names", None) or task.labels
        if sorted(names) != sorted(task.labels):
            raise UserError(f"{HUB_DATASET} {task.name} has classes {', '.join(names)}, not {', '.join(task.labels)}")
        order = np.array([task.labels.index(name) for name in names], dtype=np.int64)
        valid = (values >= 0) & (values < len(order))
        labels = order[np.where(valid, values, 0)]
    if not valid.all():
        row = int(np.argmin(valid))
        raise UserError(f"{HUB_DATASET} {task.name} row {row}: {values[row]} is not a label of {task.name}")
    return Rows(first, rest[0] if rest else None, labels)
