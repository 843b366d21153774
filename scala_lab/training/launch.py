"""Starting the workers of a run, on this host or on others, and passing on how they end."""

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
from pathlib import Path
from typing import Any, NoReturn, Protocol

from scala_lab.errors import UserError
from scala_lab.launcher import LAUNCHER
from scala_lab.spec import MachineSpec, RunSpec
from scala_lab.training.faults import Fault, find_fault
from scala_lab.training.run_folder import RunResult, read_run, record_failure, written_at
from scala_lab.version import PACKAGE_PARENT

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


class Places(Protocol):
    """Where workers are started, when it is not simply here: hosts that see this one's files."""

    def start(
        self, arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        """Start every worker as `python ARGUMENTS`; returns the processes that end when the workers have."""
        ...


def launch_workers(
    spec: RunSpec, out: Path, options: dict[str, Any], first_record: dict[str, Any], places: Places | None = None
) -> RunResult:
    """Have several workers train a run, and return what they left in `out`; see `run_workers`.

    When they fail, the run's record says which worker it was and why; `first_record` is that of a run that fails
    before it has one.
    """
    job = {"spec": spec.to_dict(), "out": str(out), "options": options}
    before = written_at(out)
    fault = _run(WORKER, job, spec.machine, places)
    result = read_run(out)
    if fault is not None and (result is None or not result.ended):
        if fault.user_error is None or written_at(out) != before:  # wrong input leaves a run as it was
            record_failure(out, fault.sentence, first_record)
        raise_failure(fault, out)
    if result is None:
        raise WorkerFailure(Fault(f"the workers left no run in {out}"))
    return result


def run_workers(module: str, job: dict[str, Any], machine: MachineSpec, places: Places | None = None) -> None:
    """Run `python -m MODULE JOB` once per worker and wait; a worker leaves word of its fault in JOB's complaints.

    When one worker fails the others are stopped. Workers watch this process and end when it is gone.

    Args:
        module: Does its part by `scala_lab.training.worker.work`.
        job: Plain values.
        machine: How many workers, with how many threads each.
        places: Where the workers are started; default here.

    Raises:
        UserError: What the worker that failed first found wrong with the input.
        WorkerFailure: Anything else that ended a worker; its traceback has been printed.
    """
    fault = _run(module, job, machine, places)
    if fault is not None:
        raise_failure(fault)


def _run(module: str, job: dict[str, Any], machine: MachineSpec, places: Places | None) -> Fault | None:
    """Run workers to their end, here or elsewhere; returns why they failed, None if all ended well."""
    start = _start_here if places is None else places.start
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
        return find_fault(Path(complaints), machine.workers, ended if places is None else {}, bad[0])


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
