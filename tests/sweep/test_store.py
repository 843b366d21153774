"""What is kept of runs and measurements: it comes back from its files as it was."""

from __future__ import annotations

import json

import pytest

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.sweep.cells import Cell
from scala_lab.sweep.store import Records, run_record
from scala_lab.training.run_dir import RunResult
from tests.studies.synthetic import run_record as synthetic


def spec(**values):
    return RunSpec.of(**{"task": "mini-qqp", "method": "scala", "lr": 1e-2, "threads": 1, "device": "cpu", **values})


@pytest.fixture
def records():
    return Records(runs={spec().run_id: synthetic(spec(), 90.0, seconds=4.0)})


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
        "fingerprints": {"model": "abc"},
        "environment": {"python": "3.11"},
        "epochs": [{"epoch": 1.0, "loss": 0.6, "divergence": 1e-3, "dev": {"accuracy": 0.8}}],
        "divergences": [[2, 1e-3]],
        "correct": {},
    }


def test_a_run_that_two_cells_share_is_one():
    assert Cell(spec().override(threads=1), method="other name").key == Cell(spec(), method="one").key
