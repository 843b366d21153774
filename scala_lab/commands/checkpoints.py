"""What the commands about saved checkpoints share: their flags, their rows, and where results go.

What commands about saved checkpoints have in common: finding them, their rows, and where results go.

The fixed, seeded rows that `sharpness` and `landscape` look at a checkpoint over.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from scala_lab.cli import parse_flags
from scala_lab.config import DataSpec, RunSpec
from scala_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from scala_lab.models.admission import Admission
    from scala_lab.training.preparation import Prepared


Options = TypeVar("Options")


def parse_with_run_data(options_type: type[Options], args: list[str], prog: str) -> Options:
    """Flags of a command with `checkpoints` and `data`; without --task, the data that a run among them was trained on.

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


def short_names(checkpoints: Sequence[Path]) -> dict[str, str]:
    """What figures call the checkpoints: their paths from the folder that they have in common.

    Example:
        >>> short_names([Path("runs/seed-0/plain"), Path("runs/seed-0/scala")])
        {'runs/seed-0/plain': 'plain', 'runs/seed-0/scala': 'scala'}
    """
    places = [Path(os.path.abspath(checkpoint)) for checkpoint in checkpoints]
    common = os.path.commonpath([place.parent for place in places])
    return {
        str(checkpoint): os.path.relpath(place, common) for checkpoint, place in zip(checkpoints, places, strict=True)
    }


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


def pick_device(asked: str) -> torch.device:
    """The device that auto, cpu or cuda means here."""
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no CUDA device that torch can use")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked)


def data_of_run(checkpoint: Path) -> DataSpec | None:
    """The data that a run was trained on whose folder, or checkpoint, this is; None if it is not a run's.

    Its label names are left out: they are those of the model that it started from, and its own checkpoint has the
    task's.
    """
    from scala_lab.training.run_dir import read_run

    run = read_run(checkpoint)
    if run is None and checkpoint.name == "checkpoint":
        run = read_run(checkpoint.parent)
    return None if run is None else dataclasses.replace(run.spec.data, label_names=())


def load_checkpoint(checkpoint: Path, data: DataSpec) -> tuple[PreTrainedModel, Prepared, Admission]:
    """A trained classifier and the rows of a task, checked to belong together, and how to run one on the other."""
    from scala_lab.models.loading import load_classifier
    from scala_lab.training.preparation import admit_model, prepare_data

    prepared = prepare_data(data, str(checkpoint))
    model = load_classifier(str(checkpoint), prepared.task, new_head=False, label_names=data.label_names)
    return model, prepared, admit_model(model, prepared, str(checkpoint), use="predict")


@dataclass(frozen=True)
class SampleOptions:
    """Which rows the loss is taken over, and how it is computed."""

    samples: int = 256
    """How many rows."""
    rows: Literal["train", "eval"] = "train"
    """Training rows, or evaluation rows."""
    seed: int = 0
    """Of the choice of rows, of solvers' starts and of random directions."""
    micro_batch: int = 64
    """Rows that run at once; changes speed and memory, not the result."""
    precision: Literal["float32", "float64"] = "float32"
    """Of weights and vectors."""
    memory: float = 2.0
    """GiB of gradient graphs to keep, which makes Hessian products faster; the rest is streamed."""
    threads: int = 0
    """CPU threads; 0 for as many as OMP_NUM_THREADS says, else all cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one."""

    @property
    def budget(self) -> int:
        """Bytes of gradient graphs to keep."""
        return int(self.memory * 2**30)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint with its sets of rows.

    Attributes:
        model: On its device, in the precision asked for.
        sets: Batches for the model, a list for each disjoint set of rows.
        unit: Of the loss.
    """

    model: PreTrainedModel
    sets: list[list[dict[str, torch.Tensor]]]
    unit: str


def check_samples(options: SampleOptions, data: DataSpec) -> None:
    """Refuse numbers that cannot work."""
    if options.samples < 1:
        raise UserError(f"--samples must be at least 1, not {options.samples}")
    for name in ("memory", "threads", "seed"):
        if not getattr(options, name) >= 0:  # refuses nan too
            raise UserError(f"--{name} must be at least 0, not {getattr(options, name)}")
    if options.memory == float("inf"):
        raise UserError("--memory must be a finite number")
    RunSpec(data=data, seed=options.seed).override(micro_batch=options.micro_batch).resolved()


def load_with_samples(
    checkpoint: Path,
    data: DataSpec,
    options: SampleOptions,
    device: torch.device,
    *,
    repeats: int = 1,
    rank: int = 0,
    workers: int = 1,
) -> Loaded:
    """A checkpoint and a worker's share of each of its sets of rows."""
    import torch

    from scala_lab.curvature.checkpoint import disjoint_sets, sorted_batches
    from scala_lab.models.loading import to_float64

    model, prepared, admission = load_checkpoint(checkpoint, data)
    split = prepared.train if options.rows == "train" else next(iter(prepared.evals.values()))
    sets = [
        sorted_batches(split, rows, options.micro_batch, admission.padding, rank, workers)
        for rows in disjoint_sets(split, options.samples, repeats, options.seed)
    ]
    torch.nn.Module.to(to_float64(model) if options.precision == "float64" else model, device)
    return Loaded(model, sets, "squared label units" if prepared.task.regression else "nats")
