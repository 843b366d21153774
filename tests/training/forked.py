"""Workers of a run that are forked from one process that has imported everything, which new ones would do again.

Each is a process of its own, with its own exit code, that meets the others over gloo.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scala_lab import machine as launcher
from scala_lab.config import MachineSpec
from scala_lab.training import distributed as launch
from tests.training.faulty_worker import set_fault

IMPORTED_LATE = ("transformers.models.bert.modeling_bert", "sklearn.metrics", "torch._dynamo")
"""What a worker imports on its way."""


class Forked:
    """What the launcher needs of a `subprocess.Popen`."""

    def __init__(self, process: Any) -> None:
        self._process = process
        process.start()

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """As of Popen."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._process.exitcode


_reserved: list[socket.socket] = []
"""Ports stay reserved until the tests end."""


def start(arguments: Sequence[str], machine: MachineSpec) -> list[Forked]:
    """In place of `launch._start_here`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.forked", *IMPORTED_LATE])
    _reserved.append(launch.reserved_port())
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_reserved[-1].getsockname()[1]),
        "WORLD_SIZE": str(machine.workers),
        "LOCAL_WORLD_SIZE": str(machine.workers),
        "OMP_NUM_THREADS": "1",
    }
    return [
        Forked(context.Process(target=work, args=(arguments[-1], {**os.environ, **shared, "RANK": str(rank)}, rank)))
        for rank in range(machine.workers)
    ]


def work(folder: str, variables: dict[str, str], rank: int) -> None:
    """What a forked worker does, with the fault that FAULT says."""
    os.environ.update(variables, LOCAL_RANK=str(rank), **{launcher.LAUNCHER: str(os.getppid())})
    launcher._STARTED_BY = os.getppid()
    set_fault(*variables["FAULT"].split())
    launch.work(Path(folder))
