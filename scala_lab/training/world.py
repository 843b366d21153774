"""The workers of a run: who this process is, and the few things all workers do together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from scala_lab.cores import check_crowd, warn_of_crowd
from scala_lab.errors import UserError
from scala_lab.launcher import end_with_launcher, outlast_sigterm
from scala_lab.precision import check_precision
from scala_lab.spec import RunSpec
from scala_lab.training.faults import Fault, Words, complaint_of

TIMEOUT = timedelta(minutes=10)
"""How long a worker waits for the others before it gives up."""


def started_by_launcher() -> bool:
    """Whether torchrun, or our own launcher, started this process as one worker of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@dataclass(frozen=True)
class World:
    """This process among the workers.

    Attributes:
        rank: Which one it is.
        size: How many there are.
        device: Where it computes.
        words: By which workers that fail tell the first one why.
    """

    rank: int
    size: int
    device: torch.device
    words: Words | None = None

    @property
    def leads(self) -> bool:
        """Whether this worker writes files and speaks to the user."""
        return self.rank == 0

    def sum(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by its sum over all workers: the one message of a step."""
        if self.size > 1:
            dist.all_reduce(buffer)

    def share_from_leader(self, tensors: list[torch.Tensor]) -> None:
        """Give every worker the first worker's values."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def gather(self, value: Any) -> list[Any] | None:
        """Values of all workers, in order, on the first worker; None on the others."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(value, gathered, dst=0)
        return gathered

    def fail(self, error: Exception) -> Fault:
        """Leave word of this worker's error for the others; returns why the workers fail, as far as is known here.

        To be called before `leave`: the others' errors follow from the end of this worker.
        """
        mine = complaint_of(self.rank, error)
        if self.words is None:
            return mine.fault(with_rank=self.size > 1)
        if not self.leads:
            self.words.leave(mine)
        first = mine if mine.kind != "lost peer" else self.words.first()
        return Fault(f"a worker ended without a word ({mine})", mine.trace) if first is None else first.fault()

    def leave(self) -> None:
        """End the worker group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join_world(spec: RunSpec) -> World:
    """Become one of the workers that the launcher started, or the only one."""
    torch.set_num_threads(spec.machine.threads or 1)
    rank, size, local_rank = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    if not started_by_launcher():
        rank, size, local_rank = 0, 1, 0
    if size != spec.machine.workers:
        raise UserError(f"the launcher started {size} workers, but the spec says {spec.machine.workers}")
    device = _device(spec, local_rank)
    if size > 1:
        end_with_launcher()
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        dist.init_process_group(
            backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=TIMEOUT
        )
        dist.barrier()  # nobody writes before everybody has looked at the run's folder
        words = Words(dist.PrefixStore("words", store))
        if rank == 0:
            outlast_sigterm(lambda: words.first() is not None)
        return World(rank, size, device, words)
    return World(rank, size, device)


_VARIABLES = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


def check_devices(spec: RunSpec) -> None:
    """Refuse more workers than this host has GPUs or cores for, and a precision that its devices lack.

    Workers on CPUs that a launcher started are there already.
    """
    if spec.machine.device == "cpu":
        check_precision(spec.machine)
        if not started_by_launcher():
            check_crowd(spec.machine.workers)
        return
    if not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no CUDA device that torch can use")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", spec.machine.workers)), torch.cuda.device_count()
    if here > gpus:
        raise UserError(f"--device cuda: {here} workers on this host, but {gpus} GPUs; each needs its own")
    check_precision(spec.machine)


def warn_of_crowded_cores(spec: RunSpec) -> None:
    """Say on stderr if the workers that we started outnumber the cores; torchrun's may each have cores of their own."""
    if spec.machine.device == "cpu" and "TORCHELASTIC_RUN_ID" not in os.environ:
        warn_of_crowd(spec.machine.workers, spec.machine.threads or 1)


def _device(spec: RunSpec, local_rank: int) -> torch.device:
    if spec.machine.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(min(local_rank, torch.cuda.device_count() - 1))
    check_devices(spec)
    return torch.device("cpu") if spec.machine.device == "cpu" else torch.device("cuda", local_rank)
