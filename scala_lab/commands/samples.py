"""The fixed, seeded rows that `sharpness` and `landscape` look at a checkpoint over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scala_lab.errors import UserError
from scala_lab.spec import DataSpec, RunSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


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

    from scala_lab.commands.checkpoints import load_checkpoint
    from scala_lab.curvature.rows import disjoint_sets, sorted_batches
    from scala_lab.models.loading import to_float64

    model, prepared, admission = load_checkpoint(checkpoint, data)
    split = prepared.train if options.rows == "train" else next(iter(prepared.evals.values()))
    sets = [
        sorted_batches(split, rows, options.micro_batch, admission.padding, rank, workers)
        for rows in disjoint_sets(split, options.samples, repeats, options.seed)
    ]
    torch.nn.Module.to(to_float64(model) if options.precision == "float64" else model, device)
    return Loaded(model, sets, "squared label units" if prepared.task.regression else "nats")
