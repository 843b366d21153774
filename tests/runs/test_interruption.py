"""Sweeps that are killed, and sweeps side by side: the same results as one clean sweep, and nothing done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from scala_lab.runs.local import LocalPool
from scala_lab.runs.store import RunStore
from scala_lab.runs.sweep import run_sweep
from scala_lab.runs.work import Job
from tests.runs.measures import tiny_spec
from tests.runs.sweeping import STEPS, cells

PATIENCE = 300
"""Seconds; a loaded machine is slow, and a test that hangs must end."""


@pytest.fixture(scope="module")
def clean(inputs, tmp_path_factory):
    store = RunStore(tmp_path_factory.mktemp("clean"))
    run_sweep(cells(*inputs), store, LocalPool(2))
    return store


def start_sweep(inputs, store: RunStore) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.runs.sweeping", *map(str, inputs), str(store.root)]
    return subprocess.Popen(command, start_new_session=True)


def steps_logged(store: RunStore) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in store.root.glob("runs/*/metrics.jsonl"))


def results(store: RunStore) -> dict[Path, dict]:
    """All records in the store by file."""
    files = [*store.root.glob("runs/*/run.json"), *store.root.glob("measurements/*.json")]
    return {file.relative_to(store.root): json.loads(file.read_text()) for file in files}


def finished(store: RunStore) -> dict[Path, tuple[int, int]]:
    """The files of everything that is done, by inode and time: writing one again would change both."""
    found = [store.root / file for file, record in results(store).items() if record["status"] != "running"]
    checkpoints = [file.parent / "checkpoint" / "model.safetensors" for file in found if file.name == "run.json"]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (*found, *checkpoints) if file.exists()}


def group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def assert_same(store: RunStore, clean: RunStore) -> None:
    """Equal records but for times, and equal weights to the bit."""
    left, right = results(store), results(clean)
    assert left.keys() == right.keys()
    for file, record in left.items():
        names = ("status", "metrics", "best", "counts", "steps_done", "result", "error", "settings", "of")
        assert {name: record.get(name) for name in names} == {name: right[file].get(name) for name in names}
    for file in clean.root.glob("runs/*/checkpoint/model.safetensors"):
        expected, found = load_file(file), load_file(store.root / file.relative_to(clean.root))
        assert all(tensor.equal(found[name]) for name, tensor in expected.items())


def test_killed_three_times_a_sweep_ends_like_a_clean_one(inputs, clean, tmp_path):
    store = RunStore(tmp_path / "store")
    done: dict[Path, tuple[int, int]] = {}
    for _ in range(3):
        goal = steps_logged(store) + random.randrange(1, STEPS)
        sweep = start_sweep(inputs, store)
        deadline = time.monotonic() + PATIENCE
        while sweep.poll() is None and steps_logged(store) < goal:
            assert time.monotonic() < deadline, "the sweep does not get on"
            time.sleep(0.002)
        sweep.send_signal(signal.SIGKILL)
        sweep.wait()
        while group_alive(sweep.pid):
            assert time.monotonic() < deadline, "workers outlive their sweep"
            time.sleep(0.05)
        assert done.items() <= finished(store).items()
        done = finished(store)
    assert start_sweep(inputs, store).wait(PATIENCE) == 0
    assert done.items() <= finished(store).items(), "something finished was done again"
    assert_same(store, clean)
    assert [file.name.partition("-")[0] for file in (store.root / "claims").iterdir()] == ["busy"]


def test_two_sweeps_share_the_work(inputs, clean, tmp_path):
    store = RunStore(tmp_path / "store")
    first_seen: dict[Path, tuple[int, int]] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for file, identity in finished(store).items():
                first_seen.setdefault(file, identity)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        sweeps = [start_sweep(inputs, store) for _ in range(2)]
        assert [sweep.wait(PATIENCE) for sweep in sweeps] == [0, 0]
    finally:
        over.set()
        watching.join()
    assert first_seen.items() <= finished(store).items(), "something finished was done again"
    assert_same(store, clean)


def test_warm_worker_trains_as_a_fresh_one(inputs, tmp_path):
    """Other threads, another model setting and another method before it leave no trace in a run."""
    target = tiny_spec(*inputs, dropout=0.2, seed=3).resolved()
    before = [
        tiny_spec(*inputs, threads=2).resolved(),
        tiny_spec(*inputs, dropout=0.2, seed=3, method="freelb").resolved(),
        tiny_spec(*inputs, method="plain", lr=1e30).resolved(),
    ]
    stores = [RunStore(tmp_path / "warm"), RunStore(tmp_path / "fresh")]
    for store, specs in zip(stores, ([*before, target], [target]), strict=True):
        with LocalPool(1) as pool:
            pool.submit([Job(spec, store.root) for spec in specs])
            endings = []
            while len(endings) < len(specs):
                endings += pool.endings(PATIENCE)
        assert {ending.outcome for ending in endings} == {"done"}
    warm, fresh = (store.run(target) for store in stores)
    assert warm.metrics == fresh.metrics
    left, right = (load_file(run.checkpoint / "model.safetensors") for run in (warm, fresh))
    assert all(tensor.equal(right[name]) for name, tensor in left.items())
    lines = [
        [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in text.splitlines()]
        for text in ((run.folder / "metrics.jsonl").read_text() for run in (warm, fresh))
    ]
    assert lines[0] == lines[1]
