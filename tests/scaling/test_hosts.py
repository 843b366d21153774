"""Hosts on one machine: real namespaces, real shaping, and nothing left of them however the end comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.errors import UserError
from scala_lab.scaling import hosts as module
from scala_lab.scaling.hosts import bits_per_second, open_hosts, why_not
from scala_lab.spec import RunSpec
from scala_lab.training import train
from tests.tiny import write_rows

ROOT = Path(__file__).parent.parent.parent

SEND = """
import socket, sys, time
with socket.create_server((sys.argv[1], 1234)) as server:
    peer, _ = server.accept()
    peer.sendall(bytes(int(sys.argv[2])))
"""
RECEIVE = """
import socket, sys, time
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 1234))
        break
    except OSError:
        time.sleep(0.05)
started = time.perf_counter()
while peer.recv(1 << 16):
    pass
print(time.perf_counter() - started)
"""
HOLD = """
import os, subprocess, time
from scala_lab.scaling.hosts import open_hosts
with open_hosts(2, "1gbit") as hosts:
    started = subprocess.Popen(hosts.command(1, ["sleep", "600"]))
    time.sleep(0.2)
    names = {os.readlink(f"/proc/{holder}/ns/net") for holder in hosts.holders}
    print(started.pid, *names, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def _able():
    lack = why_not()
    if lack is not None:
        pytest.skip(lack)


def namespaces() -> set[str]:
    """Network namespaces that some process is in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns" / "net"))
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.usefixtures("_able")
def test_two_hosts_leave_the_weights_of_one_host_and_nothing_else(tiny_bert, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 50)
    spec = RunSpec.of(
        **{"task": str(rows), "text_columns": ("text",), "label_column": "label", "model": str(tiny_bert)},
        **{"method": "scala", "delay": 0.0, "batch_size": 8, "micro_batch": 3, "lr": 0.01, "max_steps": 4},
        **{"workers": 2, "threads": 1},
    )
    before = namespaces()
    with open_hosts(2, "200mbit") as hosts:
        apart = train(spec, tmp_path / "apart", places=hosts)
        assert len(namespaces() - before) == 3
    assert namespaces() <= before
    together = train(spec, tmp_path / "together")
    assert apart.record["id"] == together.record["id"]
    weights = [(run.checkpoint / "model.safetensors").read_bytes() for run in (apart, together)]
    assert weights[0] == weights[1]


@pytest.mark.usefixtures("_able")
def test_a_link_is_no_faster_than_its_rate_in_either_direction():
    size, rate = 1_000_000, 16e6
    with open_hosts(2, "16mbit") as hosts:
        assert hosts.rate == rate
        for sender, receiver in ((0, 1), (1, 0)):
            address = hosts.address(sender)
            sending = subprocess.Popen(hosts.command(sender, [sys.executable, "-c", SEND, address, str(size)]))
            received = subprocess.run(
                hosts.command(receiver, [sys.executable, "-c", RECEIVE, address]),
                capture_output=True,
                text=True,
                check=True,
            )
            assert sending.wait() == 0
            # what the bucket lets through at once is not waited for
            assert float(received.stdout) >= 8 * (size - 2 * module.LEAST_BURST) / rate


@pytest.mark.usefixtures("_able")
def test_kill_leaves_neither_namespaces_nor_what_ran_in_them():
    holding = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pid, *names = holding.stdout.readline().split()
    assert len(names) == 2
    assert set(names) <= namespaces()
    holding.send_signal(signal.SIGKILL)
    holding.wait()
    deadline = time.monotonic() + 30
    while set(names) & namespaces() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "hosts outlive the process that made them"
        time.sleep(0.05)


def test_rate_is_read_as_tc_writes_it():
    assert [bits_per_second(rate) for rate in ("8kbit", "200mbit", "2.5gbit")] == [8e3, 2e8, 2.5e9]
    for wrong in ("200", "fast", "0mbit", "-1gbit", "10 gbit", "1tbit"):
        with pytest.raises(UserError, match="200mbit"):
            bits_per_second(wrong)


def test_what_is_lacking_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "TOOLS", ("no-such-tool",))
    with pytest.raises(UserError, match="need no-such-tool"), open_hosts(2):
        pass
    monkeypatch.setattr(module, "TOOLS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root"), open_hosts(2):
        pass


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "hosts: give the run after `--`"),
        (["--", "study", "freelb"], "hosts: give the run after `--`"),
        (["--", "train", "--workers", "3"], "hosts: --workers 3 cannot be dealt evenly to 2 hosts"),
        (["--rate", "fast", "--", "train", "--workers", "2"], "a link's rate is a number with kbit, mbit or gbit"),
        (["--count", "0", "--", "train"], "hosts: --count must be at least 1, not 0"),
    ],
)
def test_mistakes_of_the_command(args, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["hosts", *args]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
