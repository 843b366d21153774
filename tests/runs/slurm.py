"""A real SLURM of one host in a folder: munged, slurmctld and one slurmd per node, started and ended by the tests."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
NODES = 2
"""Nodes that SLURM sees; all are this host."""


def require_slurm() -> None:
    """Skip where there is no SLURM to start; on a CI machine, install it."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing and os.geteuid() == 0 and os.environ.get("CI") == "true" and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "--quiet", "slurm-wlm", "munge"], capture_output=True)
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here (Debian packages slurm-wlm and munge; CI=true as root installs them)")
    if os.geteuid() != 0:
        pytest.skip("starting SLURM's daemons takes root")


class Slurm:
    """The daemons, and the folder that holds their configuration and state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen] = []

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
        self.ask("scancel", "--user=root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def ask(self, *command: str) -> list[str]:
        """Lines that a SLURM command prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.config)}
        return subprocess.run(command, capture_output=True, text=True, env=environment).stdout.split("\n")[:-1]

    def _run(self, *command: str) -> None:
        with (self.folder / f"{command[0]}{len(self._daemons)}.log").open("wb") as log:
            environment = {**os.environ, "SLURM_CONF": str(self.config)}
            daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=_end_with_parent)
            self._daemons.append(daemon)

    def _wait_for(self, condition, complaint: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            fallen = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
            logs = "".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
            assert not fallen, f"{fallen} ended\n{logs}"
            assert time.monotonic() < deadline, f"{complaint}\n{logs}"
            time.sleep(0.1)

    def _configure(self, munge_socket: Path) -> None:
        host = socket.gethostname()
        ports = [_free_port() for _ in range(1 + NODES)]
        nodes = [
            f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for number, port in enumerate(ports[1:])
        ]
        settings = {
            "ClusterName": "test",
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
            "MpiDefault": "none",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [*nodes, "PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"]
        self.config.write_text("\n".join(lines) + "\n")
        (self.folder / "state").mkdir()


def _end_with_parent() -> None:
    """Have the system end this process when the tests are gone, even by kill -9 (Linux)."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
