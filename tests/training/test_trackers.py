"""Trackers get what the log has, and whatever they do a run trains on to the same weights."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from safetensors.torch import load_file

from scala_lab import train
from scala_lab.cli import main
from scala_lab.training.run_dir import RunResult
from tests.command_line import interrupted_after, refuse, train_flags
from tests.sweep.measures import tiny_spec
from tests.tiny import write_rows

STEPS = 6


class FakeWandb(types.ModuleType):
    """Keeps what it is given: options, numbers by step, summary and exit code; fails from a step on, if told to."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[types.SimpleNamespace] = []
        self.fails_at: float = float("inf")

    def Settings(self, **settings):
        return settings

    def init(self, **options):
        run = types.SimpleNamespace(**options, logged=[], summary={}, exit_code=None)

        def log(numbers, step):
            if step >= self.fails_at:
                raise ConnectionError("no route\nto host")
            run.logged.append((step, numbers))

        def finish(exit_code):
            run.exit_code = exit_code

        run.log, run.finish = log, finish
        self.runs.append(run)
        return run


class FakeMlflow(types.ModuleType):
    """Its client, with runs by id."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, types.SimpleNamespace] = {}
        self.MlflowClient = lambda: self
        self.entities = types.ModuleType("mlflow.entities")
        self.entities.Metric = lambda key, value, timestamp, step: (step, key, value)
        self.entities.Param = lambda key, value: (key, value)

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment, run_name):
        id = f"run{len(self.runs)}"
        self.runs[id] = types.SimpleNamespace(name=run_name, experiment=experiment, metrics=[], params=[], tags={})
        self.runs[id].status = "RUNNING"
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=id))

    def log_batch(self, id, metrics=(), params=()):
        self.runs[id].metrics += metrics
        self.runs[id].params += params

    def update_run(self, id, status):
        self.runs[id].status = status

    def set_tag(self, id, name, value):
        self.runs[id].tags[name] = value

    set_terminated = update_run


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    return fake


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, tiny_bert):
    return tiny_bert, write_rows(tmp_path_factory.mktemp("rows") / "rows.csv", 48)


@pytest.fixture(scope="module")
def alone(inputs, tmp_path_factory) -> RunResult:
    """The run without any tracker."""
    return train(tiny_spec(*inputs, heldout_samples=8), tmp_path_factory.mktemp("alone") / "run")


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def untimed(lines: list[dict]) -> list[dict]:
    return [{name: value for name, value in line.items() if name != "samples_per_second"} for line in lines]


def assert_same_run(run: RunResult, alone: RunResult) -> None:
    assert run.status == "finished"
    assert run.metrics == alone.metrics
    assert untimed(log_of(run.folder)) == untimed(log_of(alone.folder))
    left, right = (load_file(one.checkpoint / "model.safetensors") for one in (run, alone))
    assert all(tensor.equal(right[name]) for name, tensor in left.items())


def test_trackers_get_settings_every_step_and_the_end(inputs, alone, tmp_path, wandb, mlflow):
    run = train(tiny_spec(*inputs, heldout_samples=8), tmp_path / "run", log_to=["wandb", "mlflow"])
    assert_same_run(run, alone)
    assert "trackers_failed" not in run.record
    (tracked,), (other,) = wandb.runs, mlflow.runs.values()
    log = log_of(run.folder)
    by_step = [(step, numbers["train/loss"]) for step, numbers in tracked.logged if "train/loss" in numbers]
    assert by_step == [(line["step"], line["loss"]) for line in log]
    assert [(step, value) for step, key, value in other.metrics if key == "train/loss"] == by_step
    evaluated = [(line["step"], line["eval"]["dev"]["accuracy"]) for line in log if "eval" in line]
    assert len(evaluated) == 2
    assert [
        (step, numbers["dev/accuracy"]) for step, numbers in tracked.logged if "dev/accuracy" in numbers
    ] == evaluated
    assert [(step, value) for step, key, value in other.metrics if key == "dev/accuracy"] == evaluated
    last_step, last = tracked.logged[-1]
    assert last_step == log[-1]["step"]
    assert last["heldout/accuracy"] == run.metrics["heldout"]["accuracy"]
    assert (tracked.config["lr"], tracked.config["method"], tracked.name) == (
        0.01,
        "scala-effective",
        run.record["name"],
    )
    assert "alpha" not in tracked.config, "an option that the method does not have"
    assert ("lr", "0.01") in other.params
    assert (tracked.summary["status"], tracked.exit_code) == ("finished", 0)
    assert (other.tags["status"], other.status) == ("finished", "FINISHED")
    assert tracked.settings["disable_code"]
    assert tracked.settings["disable_git"]


@pytest.mark.parametrize("fails_at", [0, 3])
def test_a_tracker_that_fails_costs_no_more_than_the_tracker(inputs, alone, tmp_path, wandb, mlflow, capfd, fails_at):
    wandb.fails_at = fails_at
    run = train(tiny_spec(*inputs, heldout_samples=8), tmp_path / "run", log_to=["wandb", "mlflow"])
    assert_same_run(run, alone)
    assert json.loads((run.folder / "run.json").read_text())["trackers_failed"] == {
        "wandb": "ConnectionError: no route to host"
    }
    warning = "scala-lab: warning: wandb gets nothing more of this run: ConnectionError: no route to host"
    assert capfd.readouterr().err.count(warning) == 1
    assert next(iter(mlflow.runs.values())).status == "FINISHED"


def test_a_resumed_run_goes_on_as_the_same_run_of_its_trackers(inputs, tmp_path, wandb, mlflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = train_flags(*inputs, save_every=0, log_to=("wandb", "mlflow"))
    with interrupted_after(4):
        assert main(command) == 130
    assert wandb.runs[0].exit_code == 1
    assert [run.status for run in mlflow.runs.values()] == ["FAILED"]
    assert main([*command, "--resume"]) == 0
    first, second = wandb.runs
    assert second.id == first.id
    assert second.resume == "allow"
    assert [step for step, numbers in first.logged + second.logged if "train/lr" in numbers] == list(range(1, 10))
    (run,) = mlflow.runs.values()
    assert [step for step, key, _ in run.metrics if key == "train/lr"] == list(range(1, 10))
    assert run.status == "FINISHED"


def test_a_branch_gives_its_trackers_the_steps_of_its_trunk_too(inputs, tmp_path, wandb):
    trunk = train(tiny_spec(*inputs, method="lamb"), tmp_path / "trunk", keep_states=[1.0])
    train(tiny_spec(*inputs), tmp_path / "branch", trunk=trunk.folder, log_to=["wandb"])
    (tracked,) = wandb.runs
    assert [step for step, numbers in tracked.logged if "train/lr" in numbers] == list(range(1, STEPS + 1))


def test_a_diverged_run_is_said_to_have_failed(inputs, tmp_path, wandb):
    run = train(tiny_spec(*inputs, method="plain", lr=1e30), tmp_path / "run", log_to=["wandb"])
    assert run.status == "diverged"
    assert (wandb.runs[0].summary["status"], wandb.runs[0].exit_code) == ("diverged", 1)


def test_nothing_is_given_to_a_tracker_that_is_not_asked_for(inputs, tmp_path, wandb, mlflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(train_flags(*inputs)) == 0
    assert not wandb.runs
    assert not mlflow.runs
    assert not Path("out/trackers.json").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wandb", "--log-to wandb needs the package wandb: pip install wandb"),
        ("wandbb", "--log-to must be one of mlflow, tensorboard, wandb, not 'wandbb'"),
    ],
)
def test_a_tracker_that_is_not_there_is_named_before_anything_begins(
    inputs, tmp_path, monkeypatch, capfd, name, sentence
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scala_lab.training.trackers.is_installed", lambda name: False)
    refuse(capfd, train_flags(*inputs, log_to=name), sentence)
