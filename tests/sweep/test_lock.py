"""Locks: one holder at a time, gone with the process that held them, and respected across hosts while they beat."""

from __future__ import annotations

import json
import os
import platform
import sys
import time

import pytest

from scala_lab.sweep.cells import Measurement
from scala_lab.sweep.store import STALE_SECONDS, RunStore, locked
from tests.processes import PATIENCE, holding, wait_until
from tests.sweep import measures

ITEM, ALONE = (Measurement(measures.random_numbers, alone=alone) for alone in (False, True))
HOLD = """
import sys
from scala_lab.sweep.store import RunStore
from tests.sweep.test_lock import ALONE, ITEM
store = RunStore({!r})
"""


def hold_elsewhere(store: RunStore, block: str):
    """A process that has entered the block and stays there, until ours is left."""
    code = HOLD.format(str(store.root)) + f"with {block}:\n    print('in', flush=True); sys.stdin.read()"
    return holding([sys.executable, "-c", code], "in")


def test_lock_ends_with_its_process(tmp_path):
    store, file = RunStore(tmp_path), tmp_path / "locks" / ITEM.id
    with hold_elsewhere(store, "store.lock(ITEM)") as process:
        assert json.loads(file.read_text()) == {"host": platform.node(), "pid": process.pid}
        assert not store.remove_stale_lock(ITEM)
        with store.lock(ITEM) as acquired:
            assert not acquired
    assert file.exists()  # what a killed process leaves behind holds nobody up
    with store.lock(ITEM) as acquired:
        assert acquired
    assert not file.exists()
    file.touch()
    assert store.remove_stale_lock(ITEM)
    assert not file.exists()
    assert store.remove_stale_lock(ITEM)


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
    monkeypatch.setattr("scala_lab.sweep.store.HEARTBEAT_SECONDS", 0.01)
    file = tmp_path / "x"
    with locked(file):
        os.utime(file, (0, 0))
        wait_until(lambda: file.stat().st_mtime > 1, "no heart beats")
        assert file.stat().st_mtime == pytest.approx(time.time(), abs=PATIENCE)


def test_exclusive_block_waits_for_the_others(tmp_path):
    store = RunStore(tmp_path)
    waits = HOLD.format(str(tmp_path)) + "print('begun', flush=True)\nwith store.share_host(ALONE): print('in')"
    with hold_elsewhere(store, "store.share_host(ITEM)") as other:
        with store.share_host(ITEM):
            assert not other.ended  # two that share the host go side by side
        with holding([sys.executable, "-c", waits], "begun") as waiting:
            for _ in range(20):
                time.sleep(0.02)
                assert waiting.said == "begun\n"
            other.kill()
            assert waiting.succeed() == "begun\nin\n"
