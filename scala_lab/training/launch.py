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
from scala_lab.training.run_folder import RunResult, read_run
from scala_lab.version import PACKAGE_PARENT

USER_ERROR = ".user-error"
"""Ending of a worker's complaint that is a sentence for the user; without it, the complaint is a traceback."""


class WorkerFailure(RuntimeError):
    """A worker ended by a fault of the program or of the machine."""


class Places(Protocol):
    """Where workers are started, when it is not simply here: hosts that see this one's files."""

    def start(
        self, arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        """Start every worker as `python ARGUMENTS`; returns the processes that end when the workers have."""
        ...


def launch_workers(spec: RunSpec, out: Path, options: dict[str, Any], places: Places | None = None) -> RunResult:
    """Have several workers train a run, and return what they left in `out`; see `run_workers`."""
    job = {"spec": spec.to_dict(), "out": str(out), "options": options}
    run_workers("scala_lab.training.worker", job, spec.machine, out, places)
    result = read_run(out)
    if result is None:
        raise WorkerFailure(f"the workers left no run in {out}")
    return result


def run_workers(
    module: str, job: dict[str, Any], machine: MachineSpec, out: Path | None = None, places: Places | None = None
) -> None:
    """Run `python -m MODULE JOB` once per worker and wait; a worker leaves word of its fault in JOB's complaints.

    When one worker fails the others are stopped. Workers watch this process and end when it is gone.

    Args:
        module: Does its part by `scala_lab.training.worker.work`.
        job: Plain values.
        machine: How many workers, with how many threads each.
        out: Folder of a run that can be resumed after a failure.
        places: Where the workers are started; default here.

    Raises:
        UserError: What the first worker to fail found wrong with the input.
        WorkerFailure: Anything else that ended a worker; its traceback has been printed.
    """
    start = _start_here if places is None else places.start
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as complaints:
        arguments = ["-m", module, json.dumps({**job, "complaints": complaints})]
        workers = start(arguments, machine, _way_to_this_package())
        try:
            failed = _wait(workers)
        finally:
            _stop(workers)
        if failed is not None:
            raise_failure(failed, workers[failed].returncode, Path(complaints), out)


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


def _wait(workers: list[subprocess.Popen[bytes]]) -> int | None:
    """The first worker that did not end well, or None when all did."""
    running = dict(enumerate(workers))
    while running:
        for rank, worker in list(running.items()):
            code = worker.poll()
            if code is not None:
                del running[rank]
                if code != 0:
                    return rank
        time.sleep(0.05)
    return None


def raise_failure(rank: int, code: int, complaints: Path, out: Path | None) -> NoReturn:
    """Pass on what the worker that failed first said; another's fault often follows from it."""
    said = sorted(complaints.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    if said:
        text = said[0].read_text()
        if said[0].suffix == USER_ERROR:
            raise UserError(text)
        rank = int(said[0].name)
        print(text, file=sys.stderr, end="")
        reason = f"failed ({text.strip().splitlines()[-1]})"
    else:
        reason = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    advice = f"; give --resume to go on with the run in {out}" if out is not None else ""
    raise WorkerFailure(f"worker {rank} {reason}{advice}")


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
