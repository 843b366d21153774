"""Rows of cells, and records that come back from their files as they were."""

from __future__ import annotations

import json
import math

import pytest

from scala_lab.errors import UserError
from scala_lab.runs.measurement import Measurement
from scala_lab.runs.records import Records, run_record
from scala_lab.spec import RunSpec
from scala_lab.study import Cell
from scala_lab.study.frame import frame_of
from scala_lab.training.run_folder import RunResult
from tests.studies.synthetic import run_record as synthetic


def spec(**values):
    return RunSpec.of(**{"task": "mini-qqp", "method": "scala", "lr": 1e-2, "threads": 1, "device": "cpu", **values})


@pytest.fixture
def records():
    return Records(runs={spec().run_id: synthetic(spec(), 90.0, seconds=4.0)})


def test_a_finished_run_is_a_row_of_percents_costs_and_labels(records):
    row = frame_of([Cell(spec(), task="qqp", method="ScaLA", seed=0)], records).iloc[0]
    assert (row["task"], row["method"], row["status"]) == ("qqp", "ScaLA", "finished")
    assert (row["score"], row["f1"], row["best_score"]) == pytest.approx((90.0, 87.0, 90.5))
    assert (row["dev_accuracy"], row["dev_f1"]) == pytest.approx((90.0, 87.0))
    assert (row["forward_passes"], row["train_seconds"], row["noise_start"]) == (23.0, 4.0, 5.0)
    assert (row["workers"], row["rate"]) == (1, 1e-2)
    assert row["divergence"] == pytest.approx(6e-2, rel=1e-3)
    assert [line["epoch"] for line in row["epochs"]] == [1, 2, 3, 4, 5, 6]


def test_tasks_with_one_metric_have_no_f1_and_runs_without_noise_no_divergence():
    plain = spec(task="mini-sst2", method="plain")
    row = frame_of([Cell(plain)], Records(runs={plain.run_id: synthetic(plain, 80.0)})).iloc[0]
    assert math.isnan(row["f1"])
    assert math.isnan(row["divergence"])
    assert math.isnan(row["noise_start"])


@pytest.mark.parametrize("status", ["diverged", "failed", "running", "missing"])
def test_a_run_that_did_not_finish_has_a_status_and_no_numbers(status):
    runs = {} if status == "missing" else {spec().run_id: synthetic(spec(), 0.0, status)}
    row = frame_of([Cell(spec(), seed=3)], Records(runs=runs)).iloc[0]
    assert (row["status"], row["seed"], row["id"]) == (status, 3, spec().run_id)
    assert all(math.isnan(row[name]) for name in ("score", "f1", "train_seconds", "forward_passes", "divergence"))


def test_a_label_stands_before_a_finding_of_the_same_name(records):
    row = frame_of([Cell(spec(), rate="middle")], records).iloc[0]
    assert row["rate"] == "middle"


def test_a_measurement_is_a_row_of_its_result(records):
    taken = Measurement("module:measure", (spec(),), {"samples": 8})
    records.measurements[taken.id] = {"id": taken.id, "status": "finished", "result": {"eigenvalue": 2.5}}
    frame = frame_of([Cell(spec(), kind="run"), Cell(taken, kind="curvature")], records)
    assert frame["eigenvalue"].tolist()[1] == 2.5
    assert frame["status"].tolist() == ["finished", "finished"]
    assert frame["id"].tolist() == [spec().run_id, taken.id]


def test_records_come_back_from_their_files(records, tmp_path):
    records.measurements["m"] = {"id": "m", "status": "failed", "result": None, "error": "no\nluck"}
    records.write(tmp_path)
    assert Records.read(tmp_path) == records
    again = tmp_path / "again"
    again.mkdir()
    Records.read(tmp_path).write(again)
    for name in ("runs.jsonl", "measurements.jsonl"):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_damaged_or_missing_records_are_an_error_for_people(records, tmp_path):
    with pytest.raises(UserError, match=r"runs\.jsonl is missing"):
        Records.read(tmp_path)
    records.write(tmp_path)
    (tmp_path / "runs.jsonl").write_text('{"id": "x", "st')
    with pytest.raises(UserError, match="damaged"):
        Records.read(tmp_path)


def test_what_a_report_keeps_of_a_run(tmp_path):
    lines = [
        {"step": 1, "epoch": 0.5, "loss": 0.7, "divergence": None},
        {"step": 2, "epoch": 1.0, "loss": 0.6, "divergence": 1e-3, "eval": {"dev": {"accuracy": 0.8}}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = {"python": "3.11", "command": "/home/someone/bin/scala-lab train"}
    record = {"id": "x", "status": "finished", "fingerprints": {"model": "abc"}, "environment": environment}
    kept = run_record(RunResult(tmp_path, record))
    assert kept == {
        "id": "x",
        "status": "finished",
        "environment": {"python": "3.11"},
        "epochs": [{"epoch": 1.0, "loss": 0.6, "divergence": 1e-3, "dev": {"accuracy": 0.8}}],
    }


def test_a_run_that_two_cells_share_is_one():
    assert Cell(spec().override(threads=1), method="other name").key == Cell(spec(), method="one").key
