"""Cells with their findings, as rows."""

from __future__ import annotations

import math

import pytest

from scala_lab.config import RunSpec
from scala_lab.study import Cell
from scala_lab.study.api import frame_of
from scala_lab.sweep.cells import Measurement
from scala_lab.sweep.store import Records
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
    taken = Measurement(spec, (spec(),), {"samples": 8})
    records.measurements[taken.id] = {"id": taken.id, "status": "finished", "result": {"eigenvalue": 2.5}}
    frame = frame_of([Cell(spec(), kind="run"), Cell(taken, kind="curvature")], records)
    assert frame["eigenvalue"].tolist()[1] == 2.5
    assert frame["status"].tolist() == ["finished", "finished"]
    assert frame["id"].tolist() == [spec().run_id, taken.id]
