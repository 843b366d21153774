from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from scala_lab.scaling.phases import phase_seconds
from scala_lab.scaling.timed_run import timed_run
from scala_lab.spec import RunSpec
from tests.tiny import write_rows


@pytest.fixture
def spec(tmp_path, tiny_bert):
    def make(method, **values):
        return RunSpec.of(
            task=str(write_rows(tmp_path / "rows.csv", 60)),
            text_columns=("text",),
            label_column="label",
            model=str(tiny_bert),
            method=method,
            batch_size=16,
            micro_batch=8,
            lr=0.01,
            threads=1,
            **values,
        )

    return make


def test_every_method_has_its_phases_and_they_fit_into_the_step(spec):
    specs = {"plain": spec("lamb", max_steps=1), "noise": spec("scala", delay=0.0), "freelb": spec("freelb")}
    found = phase_seconds(specs, steps=3, warmup=1)
    common = {"data", "backward", "all-reduce", "optimizer", "step"}
    assert set(found["plain"]) == common | {"clean forward"}
    inner = {"inner forward", "inner backward", "adversarial forward"}
    assert set(found["noise"]) == common | {"clean forward"} | inner
    assert set(found["freelb"]) == common | {"adversarial forward"}
    for phases in found.values():
        assert all(len(values) == 3 for values in phases.values())
        for step in range(3):
            parts = sum(values[step] for phase, values in phases.items() if phase != "step")
            assert 0 < parts <= phases["step"][step]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_timed_run_counts_its_steps_and_leaves_nothing_behind(spec, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    found = timed_run(spec("lamb"), workers, steps=3, warmup=2)
    assert len(found.step_seconds) == 3
    assert all(seconds > found.all_reduce_seconds / 5 for seconds in found.step_seconds)
    assert found.steps_per_epoch == 4  # 54 of 60 rows are trained on
    assert found.all_reduce_seconds > 0
    rows = {Path(tmp_path / "rows.csv")}
    assert set(tmp_path.iterdir()) - before <= rows
