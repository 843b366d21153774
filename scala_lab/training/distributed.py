"""The workers of a run: who this process is among them, what they do together, and starting them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from scala_lab.config import MachineSpec, RunSpec
from scala_lab.errors import UserError
from scala_lab.machine import check_crowd, warn_of_crowd
from scala_lab.processes import LAUNCHER, PACKAGE_PARENT, end_with_launcher, outlast_sigterm
from scala_lab.training.precision import check_precision

if TYPE_CHECKING:  # faults is imported where a worker fails or several meet
    from scala_lab.training.faults import Fault, SharedErrors

TIMEOUT = timedelta(minutes=10)
"""How long a worker waits for the others before it gives up."""

GRACE_SECONDS = 5.0
"""How long the other workers may take to end by themselves, and to record why, once one has failed."""


def started_by_launcher() -> bool:
    """Whether torchrun, or our own launcher, started this process as one worker of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@dataclass(frozen=True)
class World:
    """This process among the workers; those that fail tell the first one why through `errors`."""

    rank: int
    size: int
    device: torch.device
    errors: SharedErrors | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the first worker, which writes files and speaks to the user."""
        return self.rank == 0

    def all_reduce(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by its sum over all workers: the one all-reduce of a step."""
        if self.size > 1:
            dist.all_reduce(buffer)

    def broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Broadcast the first worker's values to all workers."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def gather(self, value: Any) -> list[Any] | None:
        """Collect the values of all workers, by rank, on the first worker; None on the others."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(value, gathered, dst=0)
        return gathered

    def fail(self, error: Exception) -> Fault:
        """Share this worker's error, and return why the workers fail as far as this one knows.

        Call it before `leave`: the end of this worker makes the others fail as well.
        """
        from scala_lab.training.faults import Fault, WorkerError

        own = WorkerError.of(self.rank, error)
        if self.errors is None:
            return own.fault(with_rank=self.size > 1)
        if not self.leads:
            self.errors.add(own)
        first = own if own.kind != "lost peer" else self.errors.first()
        return Fault(f"a worker ended without a word ({own})", own.trace) if first is None else first.fault()

    def leave(self) -> None:
        """Leave the process group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join_world(spec: RunSpec) -> World:
    """Become one of the workers that a launcher started, or the only worker."""
    torch.set_num_threads(spec.machine.threads or 1)
    rank, size, local_rank = 0, 1, 0
    if started_by_launcher():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if size != spec.machine.workers:
        raise UserError(f"the launcher started {size} workers, but the spec says {spec.machine.workers}")
    if spec.machine.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(min(local_rank, torch.cuda.device_count() - 1))
    check_devices(spec)
    device = torch.device("cpu") if spec.machine.device == "cpu" else torch.device("cuda", local_rank)
    if size == 1:
        return World(rank, size, device)
    from scala_lab.training.faults import SharedErrors

    end_with_launcher()
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    backend, group_store = "nccl" if device.type == "cuda" else "gloo", dist.PrefixStore("group", store)
    dist.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=TIMEOUT)
    dist.barrier()  # no worker writes before all have checked the run's folder
    errors = SharedErrors(dist.PrefixStore("words", store))
    if rank == 0:
        outlast_sigterm(lambda: errors.first() is not None)
    return World(rank, size, device, errors)


def check_devices(spec: RunSpec) -> None:
    """Refuse more workers than this host has GPUs or cores for, and a precision that its devices lack.

    Cores are not counted for workers that a launcher has started already.
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
    """Warn on stderr if the workers that we started outnumber the cores; torchrun's may be on several hosts."""
    if spec.machine.device == "cpu" and "TORCHELASTIC_RUN_ID" not in os.environ:
        warn_of_crowd(spec.machine.workers, spec.machine.threads or 1)


class WorkerFailure(RuntimeError):
    """A worker ended by an error of the program or of the machine; `fault` says which one and why."""

    def __init__(self, fault: Fault, advice: str = "") -> None:
        super().__init__(fault.sentence + advice)
        self.fault = fault


class WorkerLauncher(Protocol):
    """Starts workers elsewhere than in processes of this host, on hosts that see its files."""

    def start(
        self, arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        """Start every worker as `python ARGUMENTS`; return the processes that end when the workers have."""
        ...


def run_workers(module: str, job: dict[str, Any], machine: MachineSpec, launcher: WorkerLauncher | None = None) -> None:
    """Run `python -m MODULE JOB` once per worker and wait for all; when one fails the others are stopped.

    The module calls `scala_lab.training.worker.work`, the job is plain values, and without a launcher the workers are
    processes of this host. They watch this process and end when it is gone.

    Raises:
        UserError: The worker that failed first found the input wrong.
        WorkerFailure: Anything else ended a worker; its traceback has been printed.
    """
    fault = try_workers(module, job, machine, launcher)
    if fault is not None:
        raise_failure(fault)


def raise_failure(fault: Fault, out: Path | None = None) -> NoReturn:
    """Raise why workers failed, with the advice to resume if the run's folder `out` is given."""
    if fault.user_error is not None:
        raise UserError(fault.user_error)
    print(fault.trace, file=sys.stderr, end="")
    raise WorkerFailure(fault, f"; give --resume to go on with the run in {out}" if out is not None else "")


def try_workers(
    module: str, job: dict[str, Any], machine: MachineSpec, launcher: WorkerLauncher | None
) -> Fault | None:
    """Do what `run_workers` does, and return why the workers failed, None if all ended well."""
    from scala_lab.training.faults import find_fault

    start = _start_here if launcher is None else launcher.start
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as errors:
        workers = start(["-m", module, json.dumps({**job, "errors": errors})], machine, _import_path())
        try:
            exit_codes = _wait(workers)
        finally:
            _stop(workers)
        failed = [code for code in exit_codes.values() if code]
        if not failed:
            return None
        return find_fault(Path(errors), machine.workers, exit_codes if launcher is None else {}, failed[0])


def _start_here(
    arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
) -> list[subprocess.Popen[bytes]]:
    """Start a process on this host for every worker."""
    with reserved_port() as port:
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.getsockname()[1]),
            "WORLD_SIZE": str(machine.workers),
            "LOCAL_WORLD_SIZE": str(machine.workers),
            "OMP_NUM_THREADS": str(machine.threads),
            LAUNCHER: str(os.getpid()),
            **environment,
        }
        return [
            subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                pass_fds=[port.fileno()],  # it stays reserved as long as a worker lives
            )
            for rank in range(machine.workers)
        ]


def _import_path() -> dict[str, str]:
    """The PYTHONPATH by which a worker finds the package when it runs from a source tree."""
    if PACKAGE_PARENT.name.endswith("-packages"):  # installed: found without help
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))}


def _wait(workers: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Wait until all workers have ended, or GRACE_SECONDS after one failed; return exit codes in order of ending."""
    exit_codes: dict[int, int] = {}
    deadline = float("inf")
    while len(exit_codes) < len(workers) and time.monotonic() < deadline:
        for rank, worker in enumerate(workers):
            if rank not in exit_codes and worker.poll() is not None:
                exit_codes[rank] = worker.returncode
                if worker.returncode:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.02)
    return exit_codes


def _stop(workers: list[subprocess.Popen[bytes]]) -> None:
    """End the workers that still run: by SIGTERM, and after 5 seconds by SIGKILL."""
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
    for worker in workers:
        try:
            worker.wait(timeout=5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def reserved_port(host: str = "127.0.0.1") -> socket.socket:
    """Open a socket that reserves a free port of this host.

    The socket is bound with SO_REUSEADDR and does not listen: a server that asks for this port gets it, as torch's
    store does, but the system gives it to nobody who asks for any free port, nor to an outgoing connection.
    """
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((host, 0))
    return port
