"""The workers of a run: the process group, starting the processes, and finding out why they failed.

When one worker fails the others fail with it, because their connections to it break. So every worker records its
error, and `find_fault` chooses the cause among all of them: each writes a file into a folder of the launcher's, and
tells the first worker, which writes the run's record, through torch's key-value store.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

import scala_lab.machine as host
from scala_lab.config import MachineSpec
from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.training.precision import check_precision

TIMEOUT = timedelta(minutes=10)  # how long a worker waits for the others in a collective operation

GRACE_SECONDS = 5.0  # how long the other workers may take to end by themselves, and to record why, once one has failed


@dataclass(frozen=True)
class World:
    """This process's rank among the workers, its device, and torch's key-value store where workers share errors."""

    rank: int
    size: int
    device: torch.device
    store: dist.Store | None = None
    silent: bool = False  # nothing is summed, so that the workers' weights diverge: only for timings

    @property
    def leads(self) -> bool:
        """Whether this is the first worker, which writes files and prints."""
        return self.rank == 0

    def all_reduce(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by its sum over all workers."""
        if self.size > 1 and not self.silent:
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
        """Share this worker's error, before `leave` makes the others fail as well; return the first error known."""
        own = Fault.of(error, self.rank if self.size > 1 else None)
        if self.store is None:
            return own
        if own.lost_peer:
            silent = Fault(f"a worker ended without reporting an error ({own.sentence})", own.trace)
            return self.first_fault() or silent
        if not self.leads:
            with suppress(RuntimeError):  # the store may have gone with the first worker
                number = self.store.add("faults", 1)
                self.store.set(f"fault {number}", json.dumps(asdict(own)))
        return own

    def first_fault(self) -> Fault | None:
        """Return the error that another worker shared first, if any did."""
        if self.store is not None:
            with suppress(RuntimeError):
                for number in range(1, self.store.add("faults", 0) + 1):
                    if self.store.check([f"fault {number}"]):
                        return Fault(**json.loads(self.store.get(f"fault {number}")))
        return None

    def leave(self) -> None:
        """Leave the process group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join_world(machine: MachineSpec) -> World:
    """Join the process group of the workers that a launcher started, or be the only worker."""
    torch.set_num_threads(machine.threads or 1)
    rank, size, local_rank = 0, 1, 0
    if host.started_by_launcher():
        rank, size, local_rank = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if size != machine.workers:
        raise UserError(f"the launcher started {size} workers, but the spec says {machine.workers}")
    if machine.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(min(local_rank, torch.cuda.device_count() - 1))
    check_devices(machine)
    device = torch.device("cpu") if machine.device == "cpu" else torch.device("cuda", local_rank)
    if size == 1:
        return World(rank, size, device)
    host.end_with_launcher()
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    backend, group_store = "nccl" if device.type == "cuda" else "gloo", dist.PrefixStore("group", store)
    dist.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=TIMEOUT)
    dist.barrier()  # no worker writes before all have checked the run's folder
    world = World(rank, size, device, dist.PrefixStore("errors", store))
    if world.leads:
        host.outlast_sigterm(lambda: world.first_fault() is not None)
    return world


def check_devices(machine: MachineSpec) -> None:
    """Refuse more workers than this host has GPUs or, unless they run already, cores for; and a missing precision."""
    if machine.device != "cpu":
        host.pick_device("cuda")
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", machine.workers)), torch.cuda.device_count()
        if here > gpus:
            raise UserError(f"--device cuda: {here} workers on this host, but {gpus} GPUs; each needs its own")
    check_precision(machine)
    if machine.device == "cpu" and not host.started_by_launcher():
        host.check_crowd(machine.workers)


class WorkerFailure(RuntimeError):
    """A worker failed for another reason than wrong input; `fault` says which one and why."""

    def __init__(self, fault: Fault, advice: str = "") -> None:
        super().__init__(fault.sentence + advice)
        self.fault = fault


WorkerLauncher = Callable[[Sequence[str], MachineSpec], list[subprocess.Popen[bytes]]]
"""Starts every worker as `python ARGUMENTS`, on hosts that see this one's files; returns what ends when they have."""


def run_workers(job: Callable[[], Any], machine: MachineSpec, launcher: WorkerLauncher | None = None) -> Any:
    """Return the result of `try_workers`, or raise what `raise_failure` does."""
    result, fault = try_workers(job, machine, launcher)
    if fault is not None:
        raise_failure(fault)
    return result


def raise_failure(fault: Fault, out: Path | None = None) -> NoReturn:
    """Raise a UserError if a worker found the input wrong, else print its traceback and raise a WorkerFailure.

    With the run's folder `out` the message says how to resume.
    """
    if fault.user_error is not None:
        raise UserError(fault.user_error)
    print(fault.trace, file=sys.stderr, end="")
    raise WorkerFailure(fault, f"; give --resume to go on with the run in {out}" if out is not None else "")


def try_workers(
    job: Callable[[], Any], machine: MachineSpec, launcher: WorkerLauncher | None
) -> tuple[Any, Fault | None]:
    """Call a function that can be pickled in every worker, and wait for all; when one fails the others are stopped.

    Returns the first worker's result, or why they failed. Without a launcher the workers are processes of this host.
    They end when this process does.
    """
    start = launcher or _start_here
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as name:
        folder = Path(name)
        workers = start(worker_arguments(folder, job), machine)
        try:
            exit_codes = _wait(workers)
        finally:
            _stop(workers)
        failed = [code for code in exit_codes.values() if code]
        if failed:
            return None, find_fault(folder, machine.workers, exit_codes if launcher is None else {}, failed[0])
        return pickle.loads((folder / "result").read_bytes()), None


def worker_arguments(folder: Path, job: Callable[[], Any]) -> list[str]:
    """Write the job of workers into a folder; return the arguments of Python for each of them."""
    (folder / "job").write_bytes(pickle.dumps((sys.argv, job)))
    return ["-m", "scala_lab.training.distributed", str(folder)]


def work(folder: Path) -> NoReturn:
    """Do one worker's part of the job in a folder and end the process.

    A worker that fails prints nothing, because the others fail with it: it writes its error into the folder, and the
    launcher reports the cause.
    """
    rank, code = int(os.environ["RANK"]), 0
    try:
        sys.argv, job = pickle.loads((folder / "job").read_bytes())  # the launcher's words, for the run's record
        result = job()
        if rank == 0:
            (folder / "result").write_bytes(pickle.dumps(result))
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the launcher reports any error
        write_json(folder / f"{rank}.json", asdict(Fault.of(error, rank)))
        code = 2 if isinstance(error, UserError) else 1
    host.end_process(code)


def _start_here(arguments: Sequence[str], machine: MachineSpec) -> list[subprocess.Popen[bytes]]:
    with reserved_port() as port:
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.getsockname()[1]),
            "WORLD_SIZE": str(machine.workers),
            "LOCAL_WORLD_SIZE": str(machine.workers),
            "OMP_NUM_THREADS": str(machine.threads),
            "PYTHONPATH": host.child_pythonpath(),
            host.LAUNCHER: str(os.getpid()),
        }
        return [
            subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                pass_fds=[port.fileno()],  # it stays reserved as long as a worker lives
            )
            for rank in range(machine.workers)
        ]


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


def reserved_port(address: str = "127.0.0.1") -> socket.socket:
    """Open a socket that reserves a free port of this host.

    It is bound with SO_REUSEADDR and does not listen: torch's store can still bind this port, but the system does not
    give it out as a free port or for an outgoing connection.
    """
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((address, 0))
    return port


@dataclass(frozen=True)
class Fault:
    """Why a worker failed, or all of them."""

    sentence: str  # which worker and how
    trace: str = ""
    user_error: str | None = None  # the message, if the input was wrong
    lost_peer: bool = False  # a consequence of another worker's end

    @classmethod
    def of(cls, error: Exception, rank: int | None = None) -> Fault:
        """Describe the exception of a worker, without a rank if it is the only one."""
        worker, text = "" if rank is None else f"worker {rank}: ", " ".join(str(error).split())
        if isinstance(error, UserError):
            return cls(worker + text, user_error=text)
        sentence = f"{worker}{type(error).__name__}: {text}".removesuffix(": ")
        return cls(sentence, "".join(traceback.format_exception(error)), lost_peer=_lost_peer(error))


def _lost_peer(error: BaseException | None) -> bool:
    """Whether an error, or one that it arose from, is a broken connection to another worker."""
    while error is not None:
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/transport/" in str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def find_fault(folder: Path, workers: int, exit_codes: Mapping[int, int], code: int = 1) -> Fault:
    """Choose the cause among the errors that workers wrote and their exit codes.

    The first of: a worker that was killed by a signal other than SIGABRT (libraries abort when a peer is gone) and
    wrote nothing; the earliest error that is no consequence of another; a worker that wrote nothing; the earliest
    error. Exit codes are by rank in order of ending; where they are unknown, `code` is that of the launcher.
    """
    files = sorted(folder.glob("[0-9]*.json"), key=lambda file: file.stat().st_mtime_ns)
    errors = {int(file.stem): Fault(**json.loads(file.read_bytes())) for file in files}
    silent = {rank: code for rank, code in exit_codes.items() if code and rank not in errors}
    killed = [rank for rank, code in silent.items() if _signal(code) not in (0, signal.SIGABRT)]
    causes = [error for error in errors.values() if not error.lost_peer]
    if killed or (silent and not causes):
        rank = (killed or list(silent))[0]
        return Fault(f"worker {rank} {_describe_exit(silent[rank])}")
    if causes:
        return causes[0]
    if not errors:
        return Fault(f"the workers' launcher {_describe_exit(code)}, and no worker reported an error")
    first, missing = next(iter(errors.values())), sorted(set(range(workers)) - set(errors))
    if missing and not exit_codes:
        return Fault(f"{name_workers(missing)} ended without reporting an error ({first.sentence})", first.trace)
    return first


def _signal(code: int) -> int:
    """Return the signal of an exit code as Python (-15) or a shell (128 + 15) writes it; 0 for none."""
    return -code if code < 0 else max(0, code - 128)


def _describe_exit(code: int) -> str:
    number, names = _signal(code), {known.value: known.name for known in signal.Signals}
    return f"was ended by {names.get(number, f'signal {number}')}" if number else f"ended with exit code {code}"


def name_workers(ranks: list[int]) -> str:
    """Name workers in a sentence.

    >>> name_workers([0, 2, 3])
    'workers 0, 2 and 3'
    """
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


if __name__ == "__main__":
    work(Path(sys.argv[1]))
