"""What commands about saved checkpoints have in common: finding them, loading them with rows that fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scala_lab.errors import UserError
from scala_lab.spec import DataSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from scala_lab.training.preparation import Prepared


def check_checkpoints(checkpoints: Sequence[Path]) -> None:
    """Refuse folders without a model, before anything slow is done."""
    from scala_lab.models.locate import locate_model

    if not checkpoints:
        raise UserError("at least one checkpoint folder is needed")
    for checkpoint in checkpoints:
        if not checkpoint.is_dir():
            raise UserError(
                f"checkpoint {checkpoint} is " + ("a file, not a folder" if checkpoint.exists() else "missing")
            )
        locate_model(str(checkpoint))


def check_new_file(file: Path | None) -> None:
    """Refuse a file that exists or cannot be made."""
    if file is None:
        return
    if os.path.lexists(file):
        raise UserError(f"{file} exists already: choose another name")
    if not file.parent.is_dir():
        raise UserError(f"{file} cannot be written: {file.parent} is no folder")


def check_new_folder(folder: Path | None) -> None:
    """Refuse a folder with something in it."""
    if folder is not None and os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not an empty folder: choose another --out")


def pick_device(asked: str) -> torch.device:
    """The device that auto, cpu or cuda means here."""
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no CUDA device that torch can use")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked)


def data_of_run(checkpoint: Path) -> DataSpec | None:
    """The data that a run folder was trained on, or None if the folder is not a run's."""
    from scala_lab.training.run_folder import read_run

    run = read_run(checkpoint) if checkpoint.is_dir() else None
    return None if run is None else run.spec.data


def load_checkpoint(checkpoint: Path, data: DataSpec) -> tuple[PreTrainedModel, Prepared]:
    """A trained classifier and the rows of a task, checked to belong together."""
    from scala_lab.models.fit import check_rows
    from scala_lab.models.loading import load_classifier
    from scala_lab.training.preparation import prepare_data

    prepared = prepare_data(data, str(checkpoint))
    model = load_classifier(str(checkpoint), prepared.task, new_head=False)
    check_rows(model, prepared.splits.values(), str(checkpoint))
    return model, prepared
