"""A real SLURM of one host in a folder: munged, slurmctld and one slurmd per node, started and ended by the tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scala_lab.training.distributed import reserved_port
from tests.processes import PATIENCE

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
NODES = 2
"""Nodes that SLURM sees; all are this host."""


def require_slurm() -> None:
    """Skip where there is no SLURM to start."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]} on this machine (Debian: apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("starting SLURM's daemons takes root")


class Slurm:
    """The daemons, and the folder that holds their configuration and state."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # near the root: paths of sockets must be short
        self.config = self.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen] = []
        self._ports = [reserved_port() for _ in range(1 + NODES)]

    def start(self) -> None:
        """Start all daemons and wait until every node takes jobs."""
        self.folder.chmod(0o755)
        key, munge_socket = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._configure(munge_socket)
        paths = [f"--{name}-file={self.folder / 'munge'}.{name}" for name in ("log", "pid", "seed")]
        self._run("munged", "--foreground", "--force", f"--socket={munge_socket}", f"--key-file={key}", *paths)
        self._wait_for(munge_socket.exists, "munged opens no socket")
        self._run("slurmctld", "-D", "-f", str(self.config))
        for number in range(NODES):
            self._run("slurmd", "-D", "-f", str(self.config), "-N", f"node{number}")
        self._wait_for(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T") == ["idle"] * NODES, "no node becomes idle")

    def stop(self) -> None:
        """End the daemons, the newest first; jobs that still run are cancelled."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ask("scancel", "--user=root", patience=60)
            self.ask("scontrol", "shutdown", patience=60)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for port in self._ports:
            port.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *command: str, patience: float = PATIENCE) -> list[str]:
        """Lines that a SLURM command prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.config)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=patience)
        return done.stdout.split("\n")[:-1]

    def _run(self, *command: str) -> None:
        with (self.folder / f"{command[0]}{len(self._daemons)}.log").open("wb") as log:
            environment = {**os.environ, "SLURM_CONF": str(self.config)}
            daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=_end_with_parent)
            self._daemons.append(daemon)

    def _wait_for(self, condition, complaint: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            fallen = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
            logs = "".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
            assert not fallen, f"{fallen} ended\n{logs}"
            assert time.monotonic() < deadline, f"{complaint}\n{logs}"
            time.sleep(0.1)

    def _configure(self, munge_socket: Path) -> None:
        host = socket.gethostname()
        ports = [port.getsockname()[1] for port in self._ports]
        nodes = [
            f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for number, port in enumerate(ports[1:])
        ]
        settings = {
            "ClusterName": "test",
            "FirstJobId": random.randrange(1000, 10_000_000),  # the workers of a job meet at a port made of its number
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports[0],
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={munge_socket}",
            "CryptoType": "crypto/munge",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool-%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd-%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "SchedulerParameters": "sched_min_interval=100000,batch_sched_delay=0",
            "AccountingStorageType": "accounting_storage/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "ReturnToService": 2,
            "KillWait": 2,
            # a loaded machine answers late
            **{"MessageTimeout": 100, "TCPTimeout": 60, "BatchStartTimeout": 600},
            **{"SlurmdTimeout": 3600, "SlurmctldTimeout": 3600},
            "MpiDefault": "none",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [*nodes, "PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"]
        self.config.write_text("\n".join(lines) + "\n")
        (self.folder / "state").mkdir()


@contextlib.contextmanager
def running_slurm() -> Iterator[Slurm]:
    """A SLURM for the block, or a skip."""
    require_slurm()
    slurm = Slurm()
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def _end_with_parent() -> None:
    """Have the system end this process when the tests are gone, even by kill -9 (Linux)."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
