from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from scala_lab.config import RunSpec
from scala_lab.timing import hosts, measurements
from scala_lab.timing.flops import forward_flops
from scala_lab.timing.phases import phase_seconds
from scala_lab.timing.timed_run import timed_runs
from scala_lab.timing.timed_worker import TimedTraining, _take_turns
from scala_lab.training.distributed import World
from scala_lab.training.run_dir import RunResult
from tests.tiny import write_rows

pytestmark = pytest.mark.long


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
    specs = {"plain": spec("lamb", max_steps=1), "freelb": spec("freelb")}
    specs |= {"noise": spec("scala", delay=0.0, pga="exact")}
    specs |= {"fused": spec("scala", delay=0.0, pga="fused", masks="shared")}
    found = phase_seconds(specs, steps=3, warmup=1)
    common = {"data", "backward", "all-reduce", "optimizer", "step"}
    assert set(found["plain"]) == common | {"clean forward"}
    inner = {"inner forward", "inner backward", "adversarial forward"}
    assert set(found["noise"]) == common | {"clean forward"} | inner
    assert set(found["fused"]) == common | {"clean forward", "inner backward", "adversarial forward"}
    assert set(found["freelb"]) == common | {"adversarial forward"}
    for phases in found.values():
        assert all(len(values) == 3 for values in phases.values())
        for step in range(3):
            parts = sum(values[step] for phase, values in phases.items() if phase != "step")
            assert 0 < parts <= phases["step"][step]


@pytest.mark.parametrize("workers", [1, 2])
def test_timed_runs_count_their_steps_and_leave_nothing_behind(spec, workers, tmp_path, monkeypatch):
    specs = {"plain": spec("lamb"), "noise": spec("scala", delay=0.0, pga="exact")}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    found = timed_runs(specs, workers, steps=2, warmup=2)
    assert set(tmp_path.iterdir()) == before
    assert list(found) == ["plain", "noise"]
    for timed in found.values():
        assert timed.steps_per_epoch == 4  # 54 of 60 rows are trained on
        assert timed.samples == [16, 6]  # the last two steps of the epoch
        assert len(timed.step_seconds) == len(timed.without_seconds) == len(timed.loads) == 2
        assert [load.rows for load in timed.loads] == [-(-size // workers) for size in timed.samples]
        assert all(load.tokens >= tokens / workers for load, tokens in zip(timed.loads, timed.tokens, strict=True))
        assert all(
            0 < sum(parts) <= whole for whole, *parts in zip(timed.step_seconds, *timed.phases.values(), strict=True)
        )
        # the worker that comes last to the all-reduce spends least time in it
        pairs = zip(timed.exchange_seconds, timed.phases["all-reduce"], strict=True)
        assert all(0 <= least <= first for least, first in pairs)
        if workers == 1:
            assert timed.exposed_seconds == [0, 0]
    # the same rows: eight passes against three
    ratios = [noise / plain for noise, plain in zip(found["noise"].flops, found["plain"].flops, strict=True)]
    assert ratios == pytest.approx([8 / 3, 8 / 3])


def test_what_comes_first_changes_from_step_to_step(spec):
    order = []

    class Noting(TimedTraining):
        def step(self, step, apart):
            order.append((step, apart))
            return {"step": 1.0, "all-reduce": 0.5}

    class Two(World):
        def gather(self, value):
            return [value, value]

    timed = Noting(spec("lamb").resolved(), World(0, 1, torch.device("cpu")))
    timed.together = Two(0, 2, torch.device("cpu"))
    found = _take_turns({"LAMB": timed}, steps=2, warmup=1)
    assert order == [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True)]
    assert found["LAMB"]["apart"] == [1.0, 1.0]
    assert found["LAMB"]["exchange"] == [0.5, 0.5]


def test_measured_steps_have_what_studies_and_projections_read(spec):
    run = RunResult(Path("nowhere"), {"spec": spec("lamb").to_dict()})
    settings = {"names": ["LAMB"], "workers": 1, "steps": 2, "warmup": 0}
    found = measurements.step_times([run], **settings)
    assert found["LAMB:steps_per_epoch"] == 4
    assert found["LAMB:samples"] == found["LAMB:load rows"] == [16, 16]
    assert found["LAMB:step"] == found["LAMB:without"]
    assert found["matmul_rate"] > 0
    assert {"LAMB:load micro_batches", "LAMB:load tokens", "LAMB:load squares", "LAMB:exchange"} <= set(found)


def test_a_machine_without_hosts_measures_nothing_over_links(spec, monkeypatch):
    monkeypatch.setattr(hosts, "why_not", lambda: "no hosts here")
    settings = {"names": ["LAMB"], "workers": 2, "steps": 2, "warmup": 0, "rate": "1gbit"}
    assert measurements.step_times([], **settings) == {"lack": "no hosts here"}


def test_workers_apart_do_not_exchange_and_those_together_do(spec):
    class Counting(World):
        sent = 0

        def all_reduce(self, buffer):
            Counting.sent += 1

    timed = TimedTraining(spec("lamb").resolved(), Counting(0, 1, torch.device("cpu")))
    timed._step(0, apart=True)  # one attempt
    assert Counting.sent == 0
    timed._step(0, apart=False)
    assert Counting.sent == 1


def test_flops_are_those_of_the_layers(tiny_bert):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert)
    width, inner, layers, labels = 16, 32, 2, 2
    found = forward_flops(model)
    assert found.per_token == 2 * layers * (4 * width**2 + 2 * width * inner)
    assert found.per_row == 2 * (width**2 + width * labels)  # pooler and head see one token
    assert found.per_square == 4 * layers * width
    assert found.of(np.array([3, 5])) == 2 * found.per_row + 8 * found.per_token + 34 * found.per_square
