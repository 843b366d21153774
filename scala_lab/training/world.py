"""The workers of a run: who this process is, and the few things all workers do together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scala_lab.cores import check_crowd, warn_of_crowd
from scala_lab.errors import UserError
from scala_lab.launcher import end_with_launcher
from scala_lab.spec import RunSpec


def started_by_launcher() -> bool:
    """Whether torchrun, or our own launcher, started this process as one worker of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@dataclass(frozen=True)
class World:
    """This process among the workers."""

    rank: int
    size: int
    device: torch.device

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
        dist.init_process_group(backend, timeout=timedelta(minutes=10))
        dist.barrier()  # nobody writes before everybody has looked at the run's folder
    return World(rank, size, device)


_VARIABLES = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


def check_devices(spec: RunSpec) -> None:
    """Refuse more workers than this host has GPUs or cores for; those of a launcher on CPUs are there already."""
    if spec.machine.device == "cpu":
        if not started_by_launcher():
            check_crowd(spec.machine.workers)
        return
    if not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no CUDA device that torch can use")
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", spec.machine.workers)), torch.cuda.device_count()
    if here > gpus:
        raise UserError(f"--device cuda: {here} workers on this host, but {gpus} GPUs; each needs its own")


def warn_of_crowded_cores(spec: RunSpec) -> None:
    """Say on stderr if the workers that we started outnumber the cores; torchrun's may each have cores of their own."""
    if spec.machine.device == "cpu" and "TORCHELASTIC_RUN_ID" not in os.environ:
        warn_of_crowd(spec.machine.workers, spec.machine.threads or 1)


def _device(spec: RunSpec, local_rank: int) -> torch.device:
    check_devices(spec)
    if spec.machine.device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
