"""Locks: one holder at a time, gone with the process that held them, and respected across hosts while they beat."""

from __future__ import annotations

import json
import os
import platform
import sys
import time

import pytest

from scala_lab.sweep.lock import STALE_SECONDS, host_lock, locked, remove_stale_lock
from tests.processes import PATIENCE, holding, wait_until

HOLD = "import sys; from pathlib import Path; from scala_lab.sweep.lock import *\n"


def hold_elsewhere(block: str):
    """A process that has entered the block and stays there, until ours is left."""
    code = HOLD + f"with {block}:\n    print('in', flush=True); sys.stdin.read()"
    return holding([sys.executable, "-c", code], "in")


def test_lock_ends_with_its_process(tmp_path):
    file = tmp_path / "locks" / "x"
    with hold_elsewhere(f"locked(Path({str(file)!r}))") as process:
        assert json.loads(file.read_text()) == {"host": platform.node(), "pid": process.pid}
        assert not remove_stale_lock(file)
        with locked(file) as acquired:
            assert not acquired
    assert file.exists()  # what a killed process leaves behind holds nobody up
    with locked(file) as acquired:
        assert acquired
    assert not file.exists()
    file.touch()
    assert remove_stale_lock(file)
    assert not file.exists()
    assert remove_stale_lock(file)


def test_lock_is_released_when_the_block_fails(tmp_path):
    file = tmp_path / "x"
    with pytest.raises(RuntimeError), locked(file):
        raise RuntimeError
    with locked(file) as acquired:
        assert acquired


@pytest.mark.parametrize(("silent_for", "free"), [(0.0, False), (STALE_SECONDS + 60, True)])
def test_lock_of_another_host_counts_while_it_beats(tmp_path, silent_for, free):
    file = tmp_path / "x"
    file.write_text(json.dumps({"host": "another", "pid": os.getpid()}))
    last_beat = time.time() - silent_for
    os.utime(file, (last_beat, last_beat))
    with locked(file) as acquired:
        assert acquired is free
    assert file.exists() is not free


def test_holder_beats(tmp_path, monkeypatch):
    monkeypatch.setattr("scala_lab.sweep.lock.HEARTBEAT_SECONDS", 0.01)
    file = tmp_path / "x"
    with locked(file):
        os.utime(file, (0, 0))
        wait_until(lambda: file.stat().st_mtime > 1, "no heart beats")
        assert file.stat().st_mtime == pytest.approx(time.time(), abs=PATIENCE)


def test_exclusive_block_waits_for_the_others(tmp_path):
    file = tmp_path / "busy"
    waits = f"print('begun', flush=True)\nwith host_lock(Path({str(file)!r}), True): print('in')"
    with hold_elsewhere(f"host_lock(Path({str(file)!r}), False)") as other:
        with host_lock(file, exclusive=False):
            assert not other.ended  # two that share the host go side by side
        with holding([sys.executable, "-c", HOLD + waits], "begun") as waiting:
            for _ in range(20):
                time.sleep(0.02)
                assert waiting.said == "begun\n"
            other.kill()
            assert waiting.succeed() == "begun\nin\n"
