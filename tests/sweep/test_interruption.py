"""Sweeps that are killed, and sweeps side by side: the same results as one clean sweep, and nothing done twice."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from scala_lab.sweep.cells import Job
from scala_lab.sweep.engine import run_sweep
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.store import RunStore
from tests.processes import Started, started, wait_until
from tests.sweep.measures import tiny_spec
from tests.sweep.sweeping import STEPS, cells
from tests.sweep.test_engine import Here
from tests.sweep.test_local import drain

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def clean(inputs, tmp_path_factory):
    """Every run from scratch: a sweep of one run has no trunk."""
    store = RunStore(tmp_path_factory.mktemp("clean"))
    for cell in cells(*inputs):
        run_sweep([cell], store, Here())
    assert {record.get("trunk") for record in results(store).values()} == {None}
    return store


def sweep(inputs, store: RunStore):
    """A sweep in a process of its own, for the block."""
    return started([sys.executable, "-m", "tests.sweep.sweeping", *inputs, store.root])


def steps_logged(store: RunStore) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in store.root.glob("runs/*/metrics.jsonl"))


def results(store: RunStore) -> dict[Path, dict]:
    """All records in the store by file."""
    files = [*store.root.glob("runs/*/run.json"), *store.root.glob("measurements/*.json")]
    return {file.relative_to(store.root): json.loads(file.read_text()) for file in files}


def finished(store: RunStore) -> dict[Path, tuple[int, int]]:
    """The files of everything that is done, by inode and time: writing one again would change both."""
    records = [store.root / file for file, record in results(store).items() if record["status"] != "running"]
    checkpoints = [file.parent / "checkpoint" / "model.safetensors" for file in records if file.name == "run.json"]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (*records, *checkpoints) if file.exists()}


def assert_same(store: RunStore, clean: RunStore) -> None:
    """Equal records but for times, and equal weights to the bit."""
    left, right = results(store), results(clean)
    assert left.keys() == right.keys()
    for file, record in left.items():
        names = ("status", "metrics", "best", "counts", "steps_done", "result", "error", "settings", "of")
        assert {name: record.get(name) for name in names} == {name: right[file].get(name) for name in names}
    for file in clean.root.glob("runs/*/checkpoint/model.safetensors"):
        expected, weights = load_file(file), load_file(store.root / file.relative_to(clean.root))
        assert all(tensor.equal(weights[name]) for name, tensor in expected.items())


def test_two_sweeps_that_are_killed_and_two_that_go_on_end_like_a_clean_one(inputs, clean, tmp_path):
    """Of two sweeps side by side the first is killed, the other goes on and is killed, two more go on from there."""
    store = RunStore(tmp_path / "store")
    first_seen: dict[Path, tuple[int, int]] = {}

    def look() -> None:
        for file, identity in finished(store).items():
            first_seen.setdefault(file, identity)

    def get_on(steps: int, running: Started) -> None:
        goal = steps_logged(store) + steps

        def there() -> bool:
            look()
            return running.ended or steps_logged(store) >= goal

        wait_until(there, f"the sweep does not log {steps} steps", running, every=0.002)

    with sweep(inputs, store) as first, sweep(inputs, store) as second:
        get_on(random.randrange(1, STEPS), first)
        first.kill()
        get_on(random.randrange(1, STEPS), second)
        second.kill()
    look()
    with sweep(inputs, store) as third, sweep(inputs, store) as fourth:
        for last in (third, fourth):
            wait_until(lambda last=last: look() or last.ended, "a sweep does not end", third, fourth)
            last.succeed()
    assert first_seen.items() <= finished(store).items(), "something finished was done again"
    assert_same(store, clean)
    assert not list(store.root.glob("runs/*/trunk"))
    assert [file.name.partition("-")[0] for file in (store.root / "locks").iterdir()] == ["busy"]


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
            assert set(drain(pool, len(specs)).values()) == {"done"}
    warm, fresh = (store.run(target) for store in stores)
    assert warm.metrics == fresh.metrics
    left, right = (load_file(run.checkpoint / "model.safetensors") for run in (warm, fresh))
    assert all(tensor.equal(right[name]) for name, tensor in left.items())
    lines = [
        [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in text.splitlines()]
        for text in ((run.folder / "metrics.jsonl").read_text() for run in (warm, fresh))
    ]
    assert lines[0] == lines[1]
