"""What the commands about saved checkpoints share: flags with the data of a run as default, and checks of paths."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scala_lab.cli import parse_flags
from scala_lab.config import DataSpec
from scala_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from scala_lab.models.admission import Admission
    from scala_lab.training.preparation import Prepared

Options = TypeVar("Options")


def parse_with_run_data(options_type: type[Options], args: list[str], prog: str) -> Options:
    """Parse the flags of a command with `checkpoints` and `data`; without --task, use the data of a run among them.

    Raises:
        UserError: A checkpoint is missing, or nothing says which task is meant.
    """
    options: Any = parse_flags(options_type, args, prog=prog)
    if any(arg.split("=")[0] == "--task" for arg in args):
        return options
    check_checkpoints(options.checkpoints)
    known = next((data for data in map(data_of_run, options.checkpoints) if data is not None), None)
    if known is None:
        raise UserError(f"--task is needed: {options.checkpoints[0]} does not say what it was trained on")
    return parse_flags(options_type, args, prog=prog, default=options_type(data=known))  # type: ignore[call-arg]


def data_of_run(checkpoint: Path) -> DataSpec | None:
    """Return the data of the run whose folder or checkpoint this is; None if it is not a run's.

    Its label names are left out: they are those of the model that it started from, and its own checkpoint has the
    task's.
    """
    from scala_lab.training.run_dir import read_run

    run = read_run(checkpoint)
    if run is None and checkpoint.name == "checkpoint":
        run = read_run(checkpoint.parent)
    return None if run is None else dataclasses.replace(run.spec.data, label_names=())


def load_checkpoint(checkpoint: Path, data: DataSpec) -> tuple[PreTrainedModel, Prepared, Admission]:
    """Load a trained classifier and the rows of a task, check that they belong together, and admit the model."""
    from scala_lab.models.loading import load_classifier
    from scala_lab.training.preparation import admit_model, prepare_data

    prepared = prepare_data(data, str(checkpoint))
    model = load_classifier(str(checkpoint), prepared.task, new_head=False, label_names=data.label_names)
    return model, prepared, admit_model(model, prepared, str(checkpoint), use="predict")


def pick_device(name: str) -> torch.device:
    """Return the device that auto, cpu or cuda means here."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no CUDA device that torch can use")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def check_checkpoints(checkpoints: Sequence[Path]) -> None:
    """Refuse folders without a model, before anything slow is done."""
    from scala_lab.models.loading import locate_model

    if not checkpoints:
        raise UserError("at least one checkpoint folder is needed")
    for checkpoint in checkpoints:
        if not checkpoint.is_dir():
            raise UserError(
                f"checkpoint {checkpoint} is " + ("a file, not a folder" if checkpoint.exists() else "missing")
            )
        locate_model(str(checkpoint))


def check_distinct(checkpoints: Sequence[Path]) -> None:
    """Refuse a checkpoint that is given twice: in a figure, nothing would tell the two apart."""
    seen: set[Path] = set()
    for checkpoint in checkpoints:
        if checkpoint.resolve() in seen:
            raise UserError(f"checkpoint {checkpoint} is given twice")
        seen.add(checkpoint.resolve())


def check_new_file(file: Path | None) -> None:
    """Refuse a file that exists or cannot be made."""
    if file is None:
        return
    if os.path.lexists(file):
        raise UserError(f"{file} exists already: choose another name")
    if not file.parent.is_dir():
        raise UserError(f"{file} cannot be written: {file.parent} is no folder")


def check_new_folder(folder: Path | None) -> None:
    """Refuse a folder with something in it, or that cannot be made."""
    if folder is None:
        return
    from scala_lab.training.run_dir import check_writable

    check_writable(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} exists already and is not empty: choose another --out")
