"""The pool of this machine: how many jobs at once, and what becomes of workers that fall."""

from __future__ import annotations

import os
import signal

import pytest
from safetensors.torch import load_file

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.sweep.cells import Cell, Job, Measurement
from scala_lab.sweep.engine import run_sweep
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.store import RunStore
from tests.processes import wait_until
from tests.sweep import measures
from tests.sweep.measures import tiny_spec

pytestmark = pytest.mark.long


def drain(pool, count):
    """What became of the next so many jobs."""
    endings = []

    def all_back():
        endings.extend(pool.endings(1.0))
        return len(endings) >= count

    wait_until(all_back, f"fewer than {count} jobs of the pool end; it is at {pool.running()}", every=0.0)
    return {ending.key: ending.outcome for ending in endings}


@pytest.mark.parametrize(
    ("cores", "processes", "threads", "at_once"),
    [(4, None, 1, 4), (4, None, 2, 2), (4, None, 3, 1), (2, None, 9, 1), (4, 3, 4, 3)],
)
def test_as_many_at_once_as_the_cores_have_room_for(tmp_path, monkeypatch, cores, processes, threads, at_once):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    started = []

    class NoProcess:
        def __init__(self):
            self.job, self.answers = None, os.pipe()[0]

        def start(self, job):
            self.job = job
            started.append(job)

    monkeypatch.setattr("scala_lab.sweep.local._Worker", NoProcess)
    measurements = [
        Measurement(measures.random_numbers, (), {"threads": threads, "number": number}) for number in range(6)
    ]
    pool = LocalPool(processes)
    pool.submit([Job(item, tmp_path) for item in measurements])
    assert len(started) == at_once
    assert pool.at_once() == max(1, at_once) or threads == 3  # 4 cores hold one and a third of these


def test_run_with_workers_counts_all_its_cores(inputs, tmp_path):
    assert Job(tiny_spec(*inputs, workers=3, threads=2), tmp_path).cores == 6


def test_killed_worker_is_replaced_and_its_run_goes_on_and_measurements_start_alike_after_it(inputs, tmp_path):
    numbers = Measurement(measures.random_numbers)
    spec = tiny_spec(*inputs, epochs=4, batch_size=4, micro_batch=4).resolved()
    stores = [RunStore(tmp_path / name) for name in ("whole", "broken")]
    with LocalPool(1) as pool:
        pool.submit([Job(spec, stores[0].root)])
        drain(pool, 1)
        log = stores[1].run_folder(spec) / "metrics.jsonl"
        pool.submit([Job(spec, stores[1].root, save_every=0.0)])
        wait_until(
            lambda: log.exists() and len(log.read_bytes().splitlines()) >= 5, "the run does not get on", every=0.002
        )
        os.kill(pool._workers[0].process.pid, signal.SIGKILL)
        assert drain(pool, 1) == {spec.run_id: "died"}
        assert stores[1].status(spec) == "running"
        pool.submit([Job(numbers, stores[0].root), Job(spec, stores[1].root, save_every=0.0)])
        pool.submit([Job(numbers, stores[1].root)])
        assert drain(pool, 3) == {spec.run_id: "done", numbers.id: "done"}
    whole, broken = (load_file(store.run(spec).checkpoint / "model.safetensors") for store in stores)
    assert all(tensor.equal(broken[name]) for name, tensor in whole.items())
    # in a worker that is new, and in one that has trained
    assert stores[0].record(numbers)["result"] == stores[1].record(numbers)["result"]


def test_workers_that_cannot_start_are_not_put_down_to_the_cells(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    measurement = Measurement(measures.random_numbers)
    store = RunStore(tmp_path / "store")
    with pytest.raises(UserError, match=r"do not start on this machine.* ended with exit code 1, saying: no such luck"):
        run_sweep([Cell(measurement)], store, LocalPool())
    assert store.status(measurement) == "missing"


def test_pool_without_processes_is_refused():
    with pytest.raises(UserError, match="at least one process"):
        LocalPool(0)


def test_measurements_go_first_then_branches_in_the_order_of_their_coming(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalPool, "_start_jobs", lambda pool: None)
    spec, pool = RunSpec.of(task="mini-sst2"), LocalPool(1)
    jobs = [Job(spec.override(seed=seed), tmp_path, trunk=tmp_path if seed == 2 else None) for seed in range(4)]
    measured = Job(Measurement(measures.random_numbers), tmp_path)
    pool.submit(jobs)
    pool.submit([measured])
    assert pool._queue == [measured, jobs[2], jobs[0], jobs[1], jobs[3]]
