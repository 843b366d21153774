"""Starting the workers of a run on this machine and passing on how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scala_lab.spec import RunSpec


def launch_workers(spec: RunSpec, out: Path, options: dict[str, Any]) -> int:
    """Run `python -m scala_lab.training.worker` once per worker and wait; returns 0 or the first failure's exit code.

    When one worker fails the others are stopped. Workers watch this process and end when it is gone.
    """
    job = json.dumps({"spec": spec.to_dict(), "out": str(out), "options": options})
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(spec.machine.workers),
        "LOCAL_WORLD_SIZE": str(spec.machine.workers),
        "OMP_NUM_THREADS": str(spec.machine.threads),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "scala_lab.training.worker", job],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(spec.machine.workers)
    ]
    try:
        return _wait(workers)
    finally:
        _stop(workers)


def _wait(workers: list[subprocess.Popen[bytes]]) -> int:
    """0 when all workers ended well, else the exit code of the first one that did not."""
    running = list(workers)
    while running:
        for worker in list(running):
            code = worker.poll()
            if code is not None:
                running.remove(worker)
                if code != 0:
                    return code
        time.sleep(0.05)
    return 0


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
