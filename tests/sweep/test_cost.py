"""What a sweep will cost: the plan against what runs then did, and against the paper's own step counts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from scala_lab.config import RunSpec, plain_epochs
from scala_lab.data.sources import all_rows, published_rows
from scala_lab.data.synthetic.generation import generate
from scala_lab.methods.cost import forward_passes
from scala_lab.sweep import cost
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.cost import estimate, expected_cost, plan, run_seconds
from scala_lab.sweep.store import RunStore, run_record
from scala_lab.training.train import train
from tests.sweep import measures
from tests.sweep.measures import tiny_spec

MACHINE = {"threads": 1, "device": "cpu"}


@pytest.mark.parametrize(
    ("task", "small", "large"),
    [("mnli", 73_632, 2_301), ("qnli", 19_644, 615), ("qqp", 68_226, 2_133), ("sst2", 12_630, 396)],
)
def test_steps_are_the_papers(task, small, large):
    """At B=32 the paper's counts are 6 epochs; at B=1K they are 3 epochs in batches of 512."""
    assert plan(RunSpec.of(task=task, method="plain", batch_size=32, epochs=6, **MACHINE)).steps == small
    assert plan(RunSpec.of(task=task, method="plain", batch_size=512, epochs=3, **MACHINE)).steps == large


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "plain"},
        {"method": "plain", "max_steps": 5},
        {"method": "freelb", "adv_passes": 2},
        {"method": "scala-effective", "delay": 0.0},
        {"method": "scala-effective", "delay": 1.3, "pga_steps": 2},
        {"method": "scala-effective", "delay": 1.6},
        {"method": "scala-effective", "lambda_": 0.0},
        {"method": "two-draws", "delay": 0.5},
        {"method": "rdrop"},
        {"method": "rdrop", "delay": 0.5},
        {"train_samples": 21, "epochs": 3},
        {"heldout_samples": 8, "tuning_samples": 4},
        {"evaluate": "end"},
    ],
    ids=str,
)
def test_plan_is_what_the_run_then_does(inputs, tmp_path, changes):
    spec = tiny_spec(*inputs, **changes)
    result = train(spec, tmp_path / "run")
    work = plan(spec)
    assert work.steps == result.record["steps"] == result.record["steps_done"]
    if "max_steps" not in changes:  # the record counts whole batches then
        assert work.forward_passes == forward_passes(run_record(result)) * result.record["samples"]["train"]
    evaluated = sum(1 for line in run_record(result)["epochs"]) * result.record["samples"]["dev"]
    assert work.evaluations == evaluated + sum(result.record["samples"].get(name, 0) for name in ("heldout", "tuning"))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "scala-effective", "delay": 1.0},
        {"method": "scala-effective", "delay": 1.4, "heldout_samples": 8},
        {"method": "two-draws", "delay": 0.5, "max_steps": 5},
        {"method": "scala", "delay": 1.0, "lambda_": 0.0},
        {"method": "rdrop", "delay": 0.4},
    ],
    ids=str,
)
def test_plan_of_a_branch_and_its_trunk_is_what_they_then_do(inputs, tmp_path, changes, monkeypatch):
    monkeypatch.setattr(cost, "run_seconds", lambda *_: 1.0)
    spec = tiny_spec(*inputs, **changes)
    trunk = replace(spec, recipe=RunSpec.of(method="lamb").recipe)
    total = estimate([Cell(spec), Cell(trunk)], RunStore(tmp_path / "empty"), processes=1)
    run = train(trunk, tmp_path / "trunk", keep_states=(plain_epochs(spec.resolved()),))
    branch = train(spec, tmp_path / "branch", trunk=run.folder)
    first, steps, rows = branch.record["trunk"]["step"], run.record["steps"], run.record["samples"]
    per_epoch = math.ceil(rows["train"] / 16)
    assert total.steps == 2 * steps - first
    assert total.epochs == pytest.approx(2 * steps / per_epoch)
    assert total.shared_epochs == pytest.approx(first / per_epoch)
    evaluated = sum(1 for line in run_record(branch)["epochs"] if line["epoch"] > first / per_epoch)
    assert plan(spec, branch=True).evaluations == evaluated * rows["dev"] + rows.get("heldout", 0)
    if "max_steps" not in changes:  # the record counts whole batches then
        passes = sum(forward_passes(run_record(one)) for one in (run, branch)) * rows["train"]
        shared = json.loads((run.folder / f"trunk/{first:08d}/position.json").read_text())["samples"]
        assert total.forward_passes == pytest.approx(passes - 3 * shared)


def test_published_rows_are_those_of_the_generator():
    rows = generate("mini-stsb")
    assert published_rows("mini-stsb") == (len(rows["train"]), len(rows["dev"]))
    assert published_rows("my-own.csv") is None


def test_published_rows_are_those_of_the_files(shared):
    from scala_lab.data.glue import load_glue_folder
    from scala_lab.data.tasks import TASKS

    for name in ("stsb", "sst2"):
        data = load_glue_folder(TASKS[name], shared / "data" / "glue")
        assert published_rows(name) == (len(data.train), sum(map(len, data.evals.values())))


def test_every_run_is_counted_once(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_measure", lambda spec: cost.Speed(1.0, 1e-3, 1e-2))
    specs = [tiny_spec(*inputs, seed=seed) for seed in range(2)]
    measured = Measurement(measures.weight_sum, tuple(specs))
    total = estimate([Cell(specs[0]), Cell(specs[0]), Cell(measured)], RunStore(tmp_path))
    assert (total.runs, total.measurements) == (2, 1)
    assert total.steps == sum(plan(spec).steps for spec in specs)
    assert total.forward_passes == sum(plan(spec).forward_passes for spec in specs)


def test_time_is_what_the_parts_take(inputs, tmp_path, monkeypatch):
    speed = cost.Speed(start=1.0, per_token=1e-3, per_update=1e-2)
    monkeypatch.setattr(cost, "_measure", lambda spec: speed)
    spec = tiny_spec(*inputs)
    work, tokens = plan(spec), cost._sample(all_rows(spec.data), spec.encoder.model).train.lengths.mean()
    expected = 1.0 + (work.forward_passes + work.evaluations) * tokens * 1e-3 + work.steps * 1e-2
    assert run_seconds(spec.resolved(), work) == pytest.approx(expected)

    store = RunStore(tmp_path)
    taken, other = (Measurement(function) for function in (measures.random_numbers, measures.interval))
    store.record_measurement(taken, result={}, seconds=6.0)
    cells = [Cell(spec), Cell(tiny_spec(*inputs, seed=1)), Cell(taken), Cell(other)]
    total = estimate(cells, store, processes=2)
    assert total.seconds == pytest.approx((2 * expected + 6.0) / 2)
    assert total.notes == [
        "the time leaves out 1 measurements by tests.sweep.measures:interval, of which none was taken here before"
    ]


def test_speed_is_measured_once_and_kept(inputs, monkeypatch, tmp_path):
    monkeypatch.setenv("SCALA_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(cost, "TIMED_SECONDS", 0.05)
    first = cost.measure_speed(tiny_spec(*inputs))
    assert min(first.start, first.per_token, first.per_update) > 0
    monkeypatch.setattr(cost, "_measure", None)
    assert cost.measure_speed(tiny_spec(*inputs, seed=5, epochs=9, method="scala-effective")) == first
    with pytest.raises(TypeError):
        cost.measure_speed(tiny_spec(*inputs, threads=2))


def test_model_that_is_not_at_hand_has_steps_but_no_time(tmp_path):
    spec = RunSpec.of(task="sst2", model="bert-base-uncased", method="scala", batch_size=1024, **MACHINE)
    total = estimate([Cell(spec)], RunStore(tmp_path))
    assert total.steps == 6 * math.ceil(67_349 / 1024)
    assert total.seconds is None
    assert "the time is not estimated" in total.notes[0]
    assert "bert-base-uncased" in total.notes[0]


def test_cost_orders_runs(inputs):
    cheap, dear = tiny_spec(*inputs, method="plain"), tiny_spec(*inputs, method="scala-effective")
    assert expected_cost(cheap) < expected_cost(dear)
    assert expected_cost(Measurement(measures.random_numbers)) == 0
    assert expected_cost(tiny_spec(inputs[0], inputs[1].parent / "none.csv")) == 0
