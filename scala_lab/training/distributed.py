"""The workers of a run: starting them, who each of them is, and the few things all of them do together.

The workers of a run: who this process is, and the few things all workers do together.

Starting the workers of a run, on this host or on others, and passing on how they end.
"""

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
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from scala_lab.config import MachineSpec, RunSpec
from scala_lab.errors import UserError
from scala_lab.machine import check_crowd, warn_of_crowd
from scala_lab.processes import LAUNCHER, PACKAGE_PARENT, end_with_launcher, outlast_sigterm
from scala_lab.training.faults import Fault, Words, complaint_of, find_fault
from scala_lab.training.precision import check_precision
from scala_lab.training.run_dir import RunResult, read_run, record_failure, written_at

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


WORKER = "scala_lab.training.worker"
"""The module that every worker of a run is."""

GRACE_SECONDS = 5.0
"""How long the others may take to end by themselves, and to say why, once a worker has ended badly."""


class WorkerFailure(RuntimeError):
    """A worker ended by a fault of the program or of the machine.

    Attributes:
        fault: Which one, and why.
    """

    def __init__(self, fault: Fault, advice: str = "") -> None:
        super().__init__(fault.sentence + advice)
        self.fault = fault


class WorkerLauncher(Protocol):
    """Where workers are started, when it is not simply here: hosts that see this one's files."""

    def start(
        self, arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        """Start every worker as `python ARGUMENTS`; returns the processes that end when the workers have."""
        ...


def launch_workers(
    spec: RunSpec,
    out: Path,
    options: dict[str, Any],
    first_record: dict[str, Any],
    launcher: WorkerLauncher | None = None,
) -> RunResult:
    """Have several workers train a run, and return what they left in `out`; see `run_workers`.

    When they fail, the run's record says which worker it was and why; `first_record` is that of a run that fails
    before it has one.
    """
    job = {"spec": spec.to_dict(), "out": str(out), "options": options}
    before = written_at(out)
    fault = _run(WORKER, job, spec.machine, launcher)
    result = read_run(out)
    if fault is not None and (result is None or not result.ended):
        if fault.user_error is None or written_at(out) != before:  # wrong input leaves a run as it was
            record_failure(out, fault.sentence, first_record)
        raise_failure(fault, out)
    if result is None:
        raise WorkerFailure(Fault(f"the workers left no run in {out}"))
    return result


def run_workers(module: str, job: dict[str, Any], machine: MachineSpec, launcher: WorkerLauncher | None = None) -> None:
    """Run `python -m MODULE JOB` once per worker and wait; a worker leaves word of its fault in JOB's complaints.

    When one worker fails the others are stopped. Workers watch this process and end when it is gone.

    Args:
        module: Does its part by `scala_lab.training.worker.work`.
        job: Plain values.
        machine: How many workers, with how many threads each.
        launcher: Starts the workers; default on this host.

    Raises:
        UserError: What the worker that failed first found wrong with the input.
        WorkerFailure: Anything else that ended a worker; its traceback has been printed.
    """
    fault = _run(module, job, machine, launcher)
    if fault is not None:
        raise_failure(fault)


def _run(module: str, job: dict[str, Any], machine: MachineSpec, launcher: WorkerLauncher | None) -> Fault | None:
    """Run workers to their end, here or elsewhere; returns why they failed, None if all ended well."""
    start = _start_here if launcher is None else launcher.start
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as complaints:
        arguments = ["-m", module, json.dumps({**job, "complaints": complaints})]
        workers = start(arguments, machine, _way_to_this_package())
        try:
            ended = _wait(workers)
        finally:
            _stop(workers)
        bad = [code for code in ended.values() if code]
        if not bad:
            return None
        return find_fault(Path(complaints), machine.workers, ended if launcher is None else {}, bad[0])


def _start_here(
    arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
) -> list[subprocess.Popen[bytes]]:
    """A process on this host for every worker."""
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


def _way_to_this_package() -> dict[str, str]:
    """What a worker's Python needs to find the package when it runs from a source tree, whatever the current folder."""
    if PACKAGE_PARENT.name.endswith("-packages"):  # installed: found without help
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))}


def _wait(workers: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Exit codes of the workers that end by themselves, in this order: of all, unless one of them ends badly."""
    ended: dict[int, int] = {}
    deadline = float("inf")
    while len(ended) < len(workers) and time.monotonic() < deadline:
        for rank, worker in enumerate(workers):
            if rank not in ended and worker.poll() is not None:
                ended[rank] = worker.returncode
                if worker.returncode:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.02)
    return ended


def raise_failure(fault: Fault, out: Path | None = None) -> NoReturn:
    """Pass on why workers failed, in a run that can be resumed if `out` is given."""
    if fault.user_error is not None:
        raise UserError(fault.user_error)
    print(fault.trace, file=sys.stderr, end="")
    advice = f"; give --resume to go on with the run in {out}" if out is not None else ""
    raise WorkerFailure(fault, advice)


def _stop(workers: list[subprocess.Popen[bytes]]) -> None:
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
    """A socket that keeps a port of this host for whoever is told its number.

    It is bound and does not listen, with its address open to reuse: a server that asks for this port gets it, as
    torch's store does, but the system gives it to nobody who asks for any port, nor to an outgoing connection.
    """
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((host, 0))
    return port
