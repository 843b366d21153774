"""A run that branches off another one's plain steps is the run from scratch, bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest

from scala_lab import RunSpec, train
from scala_lab.cli import main
from scala_lab.config import plain_epochs, steps_before
from scala_lab.methods.recipes import RECIPES
from scala_lab.training import distributed as launch
from scala_lab.training.run_dir import RunResult
from tests.command_line import interrupted_after, own_rows, refuse, train_flags
from tests.tiny import save_tiny_model, write_rows
from tests.training import forked

DELAYED = {"scala": 2.0, "scala-effective": 1.3, "gaussian": 1.0, "two-draws": 0.6, "rdrop": 2.5}
"""t_s by recipe, in epochs of 3 steps."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(folder / "model", dropout=0.1), write_rows(folder / "rows.csv", 48)


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    monkeypatch.setattr(launch, "_start_here", forked.start)
    monkeypatch.setenv("FAULT", "none none none")


def spec(inputs, **changes) -> RunSpec:
    """A run of 9 steps over 3 epochs."""
    model, rows = inputs
    run = {"batch_size": 16, "micro_batch": 8, "epochs": 3, "heldout_samples": 4, "lr": 0.01, "threads": 1}
    return RunSpec.of(**own_rows(rows), model=str(model), device="cpu", **{**run, **changes})


def evidence(run: RunResult) -> dict[str, object]:
    """All of a run but its times: weights by hash, the log, and the record."""
    names = ("id", "status", "metrics", "best", "noise_start", "counts", "steps_done", "learning_rate")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": hashlib.sha256((run.checkpoint / "model.safetensors").read_bytes()).hexdigest(),
        "log": [{name: value for name, value in line.items() if name != "samples_per_second"} for line in lines],
        **{name: run.record[name] for name in names},
    }


@pytest.fixture(scope="module")
def lamb(inputs, tmp_path_factory):
    """A LAMB run by number of workers that keeps the states at which the recipes begin to differ from it."""
    folder = tmp_path_factory.mktemp("trunks")

    def trained(workers: int) -> RunResult:
        run = spec(inputs, method="lamb", workers=workers)
        return train(run, folder / str(workers), keep_states=sorted(DELAYED.values()))

    return trained


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("method", DELAYED)
def test_branch_equals_the_run_from_scratch(inputs, lamb, tmp_path, method, workers):
    trunk = lamb(workers)
    run = spec(inputs, method=method, delay=DELAYED[method], workers=workers)
    whole, branch = train(run, tmp_path / "whole"), train(run, tmp_path / "branch", trunk=trunk.folder)
    assert evidence(branch) == evidence(whole)
    assert whole.record["counts"]["noised_samples"] > 0
    assert whole.record["trunk"] is None
    assert branch.record["trunk"] == {"id": trunk.record["id"], "step": math.ceil(DELAYED[method] * 3)}


def test_every_recipe_with_a_delay_is_among_them():
    assert set(DELAYED) == {name for name, recipe in RECIPES.items() if "delay" in recipe.option_values()}


def test_trunk_may_be_a_run_that_itself_differs_later(inputs, tmp_path):
    later = train(spec(inputs, method="scala-effective", delay=2.0), tmp_path / "trunk", keep_states=(1.0, 2.0))
    for name, changes in {"earlier": {"delay": 1.0}, "at once": {"delay": 2.0, "omega": 0.1}}.items():
        run = spec(inputs, method="scala-effective", **changes)
        branch = train(run, tmp_path / name, trunk=later.folder)
        assert evidence(branch) == evidence(train(run, tmp_path / f"{name} whole"))
        assert branch.record["trunk"]["step"] == 3 * changes["delay"]


def test_run_that_is_plain_to_the_end_is_not_trained_again(inputs, tmp_path, monkeypatch):
    trunk = train(spec(inputs, method="lamb"), tmp_path / "trunk", keep_states=(3,))
    run = spec(inputs, method="scala", delay=1.0, lambda_=0.0)
    whole = evidence(train(run, tmp_path / "whole"))
    monkeypatch.setattr("scala_lab.training.trainer.Training._train_step", None)
    assert evidence(train(run, tmp_path / "branch", trunk=trunk.folder)) == whole


def test_seconds_and_samples_include_the_prefix(inputs, lamb, tmp_path):
    state = json.loads((lamb(1).folder / "trunk/00000006/position.json").read_text())
    branch = train(spec(inputs, method="scala", delay=2.0), tmp_path / "branch", trunk=lamb(1).folder)
    assert branch.record["timing"]["train_seconds"] > state["train_seconds"] > 0
    assert branch.record["timing"]["evaluation_seconds"] > state["evaluation_seconds"] > 0


def test_interrupted_branch_needs_its_trunk_no_more(inputs, tmp_path):
    trunk = train(spec(inputs, method="lamb"), tmp_path / "trunk", keep_states=(1,))
    run = spec(inputs, method="scala", delay=1.0)
    with interrupted_after(6), pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "branch", trunk=trunk.folder, save_every=0)
    shutil.rmtree(trunk.folder / "trunk")
    branch = train(run, tmp_path / "branch", trunk=trunk.folder, resume=True)
    assert evidence(branch) == evidence(train(run, tmp_path / "whole"))
    assert branch.record["trunk"] == {"id": trunk.record["id"], "step": 3}


@pytest.mark.parametrize("per_epoch", [1, 3, 7, 10, 49])
def test_steps_before_an_epoch_are_those_that_a_delay_counts(per_epoch):
    run = RunSpec.of(method="lamb", batch_size=1, epochs=6, threads=1)
    for delay in (0.0, 0.1, 0.3, 1 / 3, 0.7, 1.0, 2.1, 2.9, 5.0, 5.99, 6.0, math.inf):
        started = [step for step in range(6 * per_epoch) if step / per_epoch >= delay]
        assert steps_before(delay, run, per_epoch) == (started[0] if started else 6 * per_epoch)


@pytest.mark.parametrize(
    ("method", "options", "epochs"),
    [
        ("plain", {}, 6),
        ("lamb", {}, 6),
        ("scala", {}, 5),
        ("scala", {"lambda_": 0.0}, 6),
        ("scala", {"delay": 0.0}, 0),
        ("scala", {"delay_rule": "settled"}, 0),
        ("scala-effective", {}, 3),
        ("rdrop", {}, 0),
        ("rdrop", {"delay": 2.0}, 2),
        ("freelb", {}, 0),
    ],
)
def test_plain_epochs(method, options, epochs):
    assert plain_epochs(RunSpec.of(method=method, epochs=6, threads=1, **options).resolved()) == epochs


def test_prefix_is_all_but_the_methods_options():
    lamb = RunSpec.of(method="lamb", threads=1)
    for same in ({"method": "scala"}, {"method": "gaussian", "omega": 1.0}, {"method": "plain", "optimizer": "lamb"}):
        assert RunSpec.of(threads=1, **same).prefix_id == lamb.prefix_id
    for other in ({"seed": 1}, {"lr": 1.0}, {"epochs": 5}, {"method": "plain"}, {"workers": 2}, {"micro_batch": 32}):
        assert lamb.override(**other).prefix_id != lamb.prefix_id


def test_wrong_trunks_are_refused(tmp_path, tiny_bert, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows = write_rows(Path("rows.csv"), 48)

    def command(**changes):
        return train_flags(tiny_bert, rows, **{"method": "scala", "delay": 1, "trunk": "trunk", **changes})

    refuse(capfd, command(), "--trunk trunk holds no run")
    train_lamb = {"method": "lamb", "delay": None, "trunk": None}
    refuse(capfd, command(**train_lamb, keep_states=(1, 4)), "--keep-states", "up to epoch 3", "not 4")
    refuse(capfd, command(keep_states=(2,), trunk=None), "up to epoch 1", "not 2")
    refuse(capfd, command(keep_states=(0,), trunk=None), "after the start", "not 0")

    assert main(command(**train_lamb, keep_states=(2,), out="trunk")) == 0
    refuse(capfd, command(seed=1), "trunk differs in more than the method's options (seed: 0 -> 1)")
    refuse(capfd, command(optimizer="adamw", lr=0.1), "optimizer: lamb -> adamw; lr: 0.01 -> 0.1")
    refuse(capfd, command(method="freelb", delay=None, optimizer="lamb"), "'freelb' takes no plain steps")
    refuse(capfd, command(delay_rule="settled"), "takes no plain steps")
    refuse(capfd, command(), "keeps no state of the first 1 epochs", "--keep-states")
    refuse(capfd, command(method="lamb", delay=None), "is this run itself")
    write_rows(rows, 48, seed=1)
    refuse(capfd, command(delay=2), "--trunk trunk is a run on another data")
    write_rows(rows, 48)
    (Path("trunk/trunk/00000006") / "position.json").write_text("{")
    assert main(command(delay=2)) == 2
    assert "cut short or damaged" in capfd.readouterr().err
    assert not Path("out/run.json").exists()
