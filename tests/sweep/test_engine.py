"""Sweeps: everything that is missing, once, in order, whatever becomes of single cells."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from pathlib import Path

import pytest

from scala_lab.errors import UserError
from scala_lab.sweep.cells import Cell, Job, Measurement, key_of
from scala_lab.sweep.engine import Ending, carry_out, run_sweep
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.store import RunStore
from tests.sweep import measures
from tests.sweep.measures import tiny_spec
from tests.tiny import save_tiny_model, write_rows

pytestmark = pytest.mark.long

WEIGHTS = measures.weight_sum


class Here:
    """Carries out jobs in this process, one per call, and remembers their order."""

    def __init__(self):
        self.jobs, self.order = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, jobs):
        self.jobs += jobs

    def endings(self, seconds):
        if not self.jobs:
            return []
        job = self.jobs.pop(0)
        self.order.append(job.key)
        return [Ending(job.key, carry_out(job))]

    def running(self):
        return []

    def at_once(self):
        return 1.0


def test_sweep_trains_and_measures_what_is_missing_once(inputs, tmp_path):
    store = RunStore(tmp_path / "store")
    short, long = tiny_spec(*inputs), tiny_spec(*inputs, epochs=4)
    first, second = Measurement(WEIGHTS, (short, long)), Measurement(WEIGHTS, (short,), {"power": 2})
    timing = Measurement(measures.random_numbers, (), alone=True)
    cells = [Cell(timing), Cell(first), Cell(short), Cell(short), Cell(second)]
    assert {status: len(items) for status, items in store.by_status(cells).items()} == {"missing": 5}

    executor = Here()
    records = run_sweep(cells, store, executor)
    runs, measurements = [long.run_id, short.run_id], {first.id, second.id}
    assert executor.order[:2] == runs  # the longest first
    assert set(executor.order[2:4]) == measurements
    assert executor.order[4:] == [timing.id]  # alone, when all else is done
    assert records.runs.keys() == set(runs)
    assert all(records.find(cell)["status"] == "finished" for cell in cells)
    assert records.measurements[second.id] == json.loads(store.record_file(second).read_text())
    assert records.measurements[first.id]["of"] == [short.run_id, long.run_id]

    again = Here()
    assert run_sweep(cells, store, again).measurements == records.measurements
    assert again.order == []
    assert {status: len(items) for status, items in store.by_status(cells).items()} == {"finished": 5}


def test_one_bad_cell_does_not_stop_the_others(inputs, tmp_path):
    model, rows = inputs
    store = RunStore(tmp_path / "store")
    absent = tmp_path / "absent.csv"
    fine = tiny_spec(model, rows)
    diverging = tiny_spec(model, rows, method="plain", lr=1e30)
    failing = tiny_spec(model, absent, eval_file=rows)
    broken = Measurement(measures.raises, (fine,), {"message": "out of luck"})
    of_bad = [Measurement(WEIGHTS, (fine, spec)) for spec in (diverging, failing)]
    cells = [Cell(item) for item in (diverging, failing, fine, broken, *of_bad)]

    records = run_sweep(cells, store, Here())
    assert records.runs[fine.run_id]["status"] == "finished"
    assert records.runs[diverging.run_id]["status"] == "diverged"
    assert records.runs[failing.run_id]["status"] == "failed"
    assert "absent.csv does not exist" in records.runs[failing.run_id]["error"]
    errors = {record["id"]: record["error"] for record in records.measurements.values() if record["status"] == "failed"}
    assert errors[broken.id] == "RuntimeError: out of luck"
    assert "in raises" in records.measurements[broken.id]["traceback"]
    assert errors[of_bad[0].id] == f"there is nothing to measure: run {diverging.name} diverged"
    assert errors[of_bad[1].id] == f"there is nothing to measure: run {failing.name} failed"

    again = Here()
    run_sweep(cells, store, again)
    assert again.order == []  # failed ones stay failed

    write_rows(absent, 48)
    retried = Here()
    records = run_sweep(cells, store, retried, retry_failed=True)
    # what diverged would diverge again, so neither it nor what needs it is done over
    assert set(retried.order) == {failing.run_id, broken.id, of_bad[1].id}
    assert records.runs[failing.run_id]["status"] == "finished"
    assert "error" not in records.runs[failing.run_id]
    assert records.measurements[of_bad[1].id]["status"] == "finished"
    assert records.measurements[broken.id]["status"] == "failed"


def test_cell_that_another_sweep_has_locked_is_waited_for(inputs, tmp_path):
    store = RunStore(tmp_path / "store")
    let_go, finished = tiny_spec(*inputs), Measurement(measures.random_numbers)
    executor, seen = Here(), threading.Event()
    locked = []

    class Watched(Here):
        def endings(self, seconds):
            endings = executor.endings(seconds)
            locked.extend(ending.key for ending in endings if ending.outcome == "locked")
            if len(locked) >= 2:
                seen.set()
            return endings

        def submit(self, jobs):
            executor.submit(jobs)

    records = []
    with store.lock(let_go) as first, store.lock(finished) as second:
        assert first
        assert second
        cells = [Cell(let_go), Cell(finished)]
        sweep = threading.Thread(target=lambda: records.append(run_sweep(cells, store, Watched())))
        sweep.start()
        assert seen.wait(60)
        store.record_measurement(finished, result={"by": "the other"})
    sweep.join(60)
    assert set(locked) == {let_go.run_id, finished.id}
    assert records[0].measurements[finished.id]["result"] == {"by": "the other"}
    assert records[0].runs[let_go.run_id]["status"] == "finished"  # let go without a result: taken over
    assert executor.order.count(finished.id) == 1
    assert [file.name.partition("-")[0] for file in (store.root / "locks").iterdir()] == ["busy"]


def test_dead_worker_costs_its_cell_one_more_try(inputs, tmp_path):
    marks = [tmp_path / "once", tmp_path / "always"]
    once, always = (
        Measurement(measures.dies, (), {"marker": str(mark), "times": times})
        for mark, times in zip(marks, (1, 9), strict=True)
    )
    other = Measurement(measures.random_numbers)
    records = run_sweep([Cell(once), Cell(always), Cell(other)], RunStore(tmp_path / "store"), LocalPool(1))
    assert records.measurements[once.id]["result"] == {"attempts": 2}
    assert records.measurements[always.id]["status"] == "failed"
    assert records.measurements[always.id]["error"] == "tried twice: its process was ended by SIGKILL"
    assert marks[1].stat().st_size == 2
    assert records.measurements[other.id]["status"] == "finished"


def test_measurements_that_are_alone_overlap_with_nothing(inputs, tmp_path):
    def timed(number, alone):
        settings = {"number": number, "seconds": 0.3}
        return Measurement(measures.interval, (), settings, alone=alone)

    together, alone = [timed(number, False) for number in range(2)], [timed(number, True) for number in (2, 3)]
    records = run_sweep([Cell(item) for item in (*alone, *together)], RunStore(tmp_path / "store"), LocalPool(2))
    spans = {
        key: (record["result"]["began"], record["result"]["ended"]) for key, record in records.measurements.items()
    }
    for quiet in alone:
        for other in {*spans} - {quiet.id}:
            assert spans[quiet.id][0] > spans[other][1] or spans[quiet.id][1] < spans[other][0]
    assert max(spans[item.id][1] for item in together) < min(spans[item.id][0] for item in alone)


def test_jobs_mean_the_same_in_another_process(inputs, tmp_path):
    spec = tiny_spec(*inputs, max_weight_norm=float("inf"), data_dir=None)
    measurement = Measurement(WEIGHTS, (spec, tiny_spec(*inputs, seed=1)), {"power": 2}, alone=True)
    for item in (spec.resolved(), measurement):
        job = Job(item, tmp_path, 3.0, True)
        read = pickle.loads(pickle.dumps(job))
        assert (read.key, read.item.name, read.cores) == (key_of(item), item.name, 1)
        assert read.store == tmp_path
        assert (read.save_every, read.retry_failed) == (3.0, True)


def test_measurements_that_another_process_could_not_import_are_refused():
    with pytest.raises(UserError, match="stands inside another"):
        Measurement(lambda runs: {})


def test_store_that_is_a_file_is_refused_before_any_work(inputs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        run_sweep([Cell(tiny_spec(*inputs))], RunStore(tmp_path / "file"), Here())


def test_damaged_measurement_is_named(inputs, tmp_path):
    store, measurement = RunStore(tmp_path), Measurement(measures.random_numbers)
    store.record_file(measurement).parent.mkdir()
    store.record_file(measurement).write_text('{"id": ')
    with pytest.raises(UserError, match="delete it to measure again"):
        store.records([Cell(measurement)])


@pytest.mark.parametrize("changed", ["data", "model"])
def test_runs_on_other_inputs_of_the_same_name_are_not_taken_for_these(inputs, tmp_path, monkeypatch, changed):
    model, rows = inputs
    store = RunStore(tmp_path / "store")
    run_sweep([Cell(tiny_spec(model, rows))], store, Here())
    other = tmp_path / "other"
    if changed == "data":
        other.mkdir()
        spec = tiny_spec(model, write_rows(other / rows.name, 48, seed=1), eval_file=rows)
    else:
        spec = tiny_spec(save_tiny_model(other / model.name, dropout=0.1, hidden=8), rows)
    assert store.status(spec) == "finished"  # by its id it is the same run
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, where the live view must not hide the error
    with pytest.raises(UserError, match=f"on another {changed}"):
        run_sweep([Cell(spec)], store, Here(), progress=True)


def test_results_outlive_their_data(inputs, tmp_path):
    model, rows = inputs
    file = Path(shutil.copy(rows, tmp_path / "mine.csv"))
    cells = [Cell(tiny_spec(model, file, eval_file=rows))]
    before = run_sweep(cells, RunStore(tmp_path / "store"), Here())
    file.unlink()
    assert run_sweep(cells, RunStore(tmp_path / "store"), Here()).runs == before.runs


def test_lock_that_a_killed_process_left_on_what_it_had_finished_is_removed(inputs, tmp_path):
    store, spec = RunStore(tmp_path / "store"), tiny_spec(*inputs)
    run_sweep([Cell(spec)], store, Here())
    left = store.root / "locks" / spec.run_id
    left.write_text(json.dumps({"host": "somewhere", "pid": 1}))
    run_sweep([Cell(spec)], store, Here())
    assert left.exists(), "another host may hold it still"
    left.write_text("")
    run_sweep([Cell(spec)], store, Here())
    assert not left.exists()


def test_records_of_a_lost_store_count_and_only_what_is_still_to_be_measured_is_trained_again(inputs, tmp_path):
    first, second = tiny_spec(*inputs), tiny_spec(*inputs, seed=1)
    power = Measurement(WEIGHTS, (second,), {"power": 2})
    cells = [Cell(first), Cell(second), Cell(Measurement(WEIGHTS, (first,)))]
    known = run_sweep(cells, RunStore(tmp_path / "lost"), Here())
    shutil.rmtree(tmp_path / "lost")

    same = Here()
    assert run_sweep(cells, RunStore(tmp_path / "new", known), same) == known
    assert same.order == []
    assert not RunStore(tmp_path / "new").has_model(first)

    more = Here()
    records = run_sweep([*cells, Cell(power)], RunStore(tmp_path / "new", known), more)
    assert more.order == [second.run_id, power.id]
    assert records.measurements[power.id]["status"] == "finished"
    assert records.runs[first.run_id] == known.runs[first.run_id]
    again, before = records.runs[second.run_id], known.runs[second.run_id]
    assert again["metrics"] == before["metrics"]
    assert again["correct"] == before["correct"]


def test_known_records_of_runs_on_other_data_are_refused(inputs, tmp_path):
    cell = Cell(tiny_spec(*inputs))
    known = run_sweep([cell], RunStore(tmp_path / "lost"), Here())
    known.runs[cell.key]["fingerprints"]["data"] = "another"
    with pytest.raises(UserError, match="on another data"):
        run_sweep([cell], RunStore(tmp_path / "new", known), Here())
