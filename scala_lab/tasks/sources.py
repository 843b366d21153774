"""Where a task's rows come from: the generator, a GLUE folder, the hub, or a file of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.errors import UserError
from scala_lab.tasks.glue_folder import load_glue_folder
from scala_lab.tasks.glue_hub import load_from_hub
from scala_lab.tasks.own_file import load_own_file
from scala_lab.tasks.own_tables import is_own_file
from scala_lab.tasks.registry import TASKS, find_task
from scala_lab.tasks.rows import TaskData

if TYPE_CHECKING:
    from scala_lab.spec import DataSpec


def load_task(data: DataSpec) -> TaskData:
    """All rows of the task that `data` names.

    Raises:
        UserError: The task, a folder, a file, a column or a row is not as it should be, or an option was given
            that this source would ignore.
    """
    if data.task not in TASKS and is_own_file(data.task):
        if data.data_dir is not None:
            raise UserError(f"--data-dir is for the GLUE tasks; --task {data.task} is a file of its own")
        return load_own_file(data)
    task = find_task(data.task)
    _refuse_file_options(data)
    if task.embedded:
        if data.data_dir is not None:
            glue = task.name.removeprefix("mini-")
            raise UserError(
                f"--task {task.name} is generated and reads no --data-dir; for that folder give --task {glue}"
            )
        from scala_lab.tasks.embedded.generation import generate

        rows = generate(task.name)
        return TaskData(task, rows["train"], {name: split for name, split in rows.items() if name != "train"})
    if data.data_dir is not None:
        return load_glue_folder(task, data.data_dir)
    return load_from_hub(task)


def _refuse_file_options(data: DataSpec) -> None:
    given = {
        "--text-columns": data.text_columns,
        "--label-column": data.label_column,
        "--eval-file": data.eval_file,
        "--regression": data.regression,
    }
    for flag, value in given.items():
        if value:
            raise UserError(f"{flag} is for a file of your own; {data.task} has its columns and splits built in")
