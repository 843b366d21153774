"""Hosts on one machine: real namespaces, real shaping, and nothing left of them however the end comes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.timing import hosts as module
from scala_lab.timing.hosts import bits_per_second, open_hosts, unsupported_reason
from scala_lab.training.train import train
from tests.processes import alive, holding, run, started, wait_until
from tests.tiny import write_rows

pytestmark = pytest.mark.long

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
from scala_lab.timing.hosts import open_hosts
with open_hosts(2, "1gbit") as hosts:
    names = [os.readlink(f"/proc/{holder}/ns/net") for holder in hosts.holders]
    started = subprocess.Popen(hosts.command(1, ["sleep", "1200"]))
    while os.readlink(f"/proc/{started.pid}/ns/net") != names[1]:
        time.sleep(0.01)  # it is on its way there
    print(started.pid, *names, flush=True)
    time.sleep(1200)
"""


@pytest.fixture
def _able():
    lack = unsupported_reason()
    if lack is not None:
        pytest.skip(lack)


def namespaces() -> dict[str, list[str]]:
    """Network namespaces that some process is in, with what these processes were started as."""
    found: dict[str, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.setdefault(os.readlink(process / "ns" / "net"), []).append(words)
        except OSError:  # it has just ended
            continue
    return found


def namespace_of(process: int) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


@pytest.mark.usefixtures("_able")
def test_two_hosts_leave_the_weights_of_one_host_and_nothing_else(tiny_bert, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 50)
    spec = RunSpec.of(
        **{"task": str(rows), "text_columns": ("text",), "label_column": "label", "model": str(tiny_bert)},
        **{"method": "scala", "delay": 0.0, "batch_size": 8, "micro_batch": 3, "lr": 0.01, "max_steps": 4},
        **{"workers": 2, "threads": 1},
    )
    with open_hosts(2, "200mbit") as hosts:
        ours = {namespace_of(holder) for holder in hosts.holders}
        assert len(ours) == 2
        assert namespace_of(os.getpid()) not in ours
        apart = train(spec, tmp_path / "apart", launcher=hosts)
        left = {name: words for name, words in namespaces().items() if name in ours}
        assert {name: len(words) for name, words in left.items()} == dict.fromkeys(ours, 1), left
    assert not ours & set(namespaces())
    together = train(spec, tmp_path / "together")
    assert apart.record["id"] == together.record["id"]
    weights = [(run.checkpoint / "model.safetensors").read_bytes() for run in (apart, together)]
    assert weights[0] == weights[1]


@pytest.mark.usefixtures("_able")
def test_a_link_is_no_faster_than_its_rate_in_either_direction():
    size, rate = 1_000_000, 16e6
    with open_hosts(2, "16mbit") as hosts:
        for sender, receiver in ((0, 1), (1, 0)):
            address = hosts.address(sender)
            with started(hosts.command(sender, [sys.executable, "-c", SEND, address, str(size)])) as sending:
                seconds = float(run(hosts.command(receiver, [sys.executable, "-c", RECEIVE, address])))
                sending.succeed()
            # what the bucket lets through at once is not waited for
            assert seconds >= 8 * (size - 2 * module.MIN_BURST) / rate


@pytest.mark.usefixtures("_able")
def test_kill_leaves_neither_namespaces_nor_what_ran_in_them():
    with holding([sys.executable, "-c", HOLD], "\n") as maker:
        pid, *names = maker.said.split()
        assert len(names) == 2
        assert set(names) <= set(namespaces())
        maker.kill()
        wait_until(
            lambda: not set(names) & set(namespaces()) and not alive(int(pid)),
            "hosts outlive the process that made them",
        )


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
