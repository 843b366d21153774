"""Bad folders of runs and checkpoints: one clear sentence, exit code 2, nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scala_lab.cli import main
from tests.bad_input.mistakes import LAYER, save_weights, train, truncate
from tests.command_line import data_flags, flags, refuse
from tests.tiny import save_tiny_model, write_rows


def bring(runs: Path, name: str) -> Path:
    shutil.copytree(runs / name, name)
    return Path(name)


def test_folder_of_another_run(here, runs, capfd):
    bring(runs, "done")
    refuse(capfd, train(out="done", lr=0.02), "done holds another run", "lr: 0.01 -> 0.02")
    refuse(capfd, train(out="done", method="plain"), "another run", "method: lamb -> plain")
    refuse(capfd, train(out="done", seed=1, resume=True), "another run", "seed: 0 -> 1")


def test_folder_of_a_run_on_other_rows_or_weights(here, runs, capfd):
    bring(runs, "done")
    write_rows(Path("rows.csv"), 48, seed=1)
    refuse(capfd, train(out="done"), "same spec on another data")
    shutil.copy(runs / "rows.csv", "rows.csv")
    save_weights(lambda weights: weights[LAYER].mul_(2))
    refuse(capfd, train(out="done"), "same spec on another model")


def test_model_of_an_unfinished_run_that_is_gone(here, runs, capfd):
    bring(runs, "broken")
    shutil.rmtree("model")
    stored = json.loads(Path("broken/run.json").read_text())["spec"]["encoder"]["model"]
    assert stored == "model"
    refuse(capfd, ["train", "--out", "broken", "--resume"], "'model' is no folder here")
    refuse(capfd, train(out="broken", resume=True, model="./model"), "model folder ./model does not exist")


def test_unfinished_run_without_resume(here, runs, capfd):
    bring(runs, "broken")
    refuse(capfd, train(out="broken"), "running at step 4 of 9", "--resume")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.02}, "lr: 0.01 -> 0.02"),
        ({"method": "scala"}, "method: lamb -> scala"),
        ({"optimizer": "adamw"}, "optimizer: lamb -> adamw"),
        ({"batch_size": 8}, "batch_size: 16 -> 8"),
    ],
)
def test_resume_with_another_setting(here, runs, capfd, change, said):
    bring(runs, "broken")
    refuse(capfd, ["train", *flags(out="broken", resume=True, **change)], "another run", said)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: truncate(file, 0.5),
        lambda file: truncate(file, 0),
        lambda file: file.write_bytes(b"\xff\xfe\x00"),
        lambda file: file.write_text("[]"),
        lambda file: file.write_text("{}"),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"spec": 3})),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"spec": {"bach": 3}})),
    ],
)
@pytest.mark.parametrize("more", [{}, {"resume": True}])
def test_damaged_record(here, runs, capfd, damage, more):
    damage(bring(runs, "broken") / "run.json")
    refuse(capfd, train(out="broken", **more), "broken/run.json is damaged")


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "position.json"])
def test_state_cut_short(here, runs, capfd, name):
    (state,) = bring(runs, "broken").glob("state/*")
    truncate(state / name, 0.6)
    refuse(capfd, ["train", "--out", "broken", "--resume"], str(state), "cut short", "delete that folder")
    shutil.rmtree(state)
    assert main(["train", "--out", "broken", "--resume"]) == 0, "the advice must work"


def test_state_without_its_parts(here, runs, capfd):
    (state,) = bring(runs, "broken").glob("state/*")
    (state / "position.json").write_text("{}")
    refuse(capfd, ["train", "--out", "broken", "--resume"], "cut short or damaged")


WRONG_EVALUATIONS = [
    ([], {}, ["at least one checkpoint"]),
    (["none"], {}, ["checkpoint none is missing"]),
    (["rows.csv"], {}, ["rows.csv is a file"]),
    (["broken"], {}, ["broken holds no model", "left no checkpoint"]),
    (["done"], {"task": "sst3"}, ["unknown task"]),
    (["done"], {"predictions": "rows.csv"}, ["rows.csv exists already"]),
    (["done"], {"json": "done"}, ["done exists already"]),
    (["done"], {"predictions": "none/p.csv"}, ["none/p.csv cannot be written"]),
    (["done"], {"predictions": "p", "json": "p"}, ["different files"]),
    (["done"], {"eval_samples": 49}, ["--eval-samples 49", "48 rows"]),
    (["done"], {"eval_samples": 0}, ["--eval-samples must be at least 1"]),
    (["done"], {"micro_batch": 0}, ["--micro-batch must be at least 1"]),
    (["done"], {"threads": -1}, ["--threads must be at least 0"]),
    (["done"], {"device": "cuda"}, ["no CUDA device"]),
    (["done"], {"method": "lamb"}, ["unknown flag '--method'"]),
    (["done"], {"regression": True}, ["a head for 2 classes", "regression head"]),
]


@pytest.mark.parametrize(("checkpoints", "changes", "words"), WRONG_EVALUATIONS)
def test_evaluation_that_cannot_be(here, runs, capfd, checkpoints, changes, words):
    bring(runs, "done")
    bring(runs, "broken")
    refuse(capfd, ["evaluate", *checkpoints, *data_flags(Path("rows.csv"), **changes)], *words)


def test_checkpoint_cut_short(here, runs, capfd):
    truncate(bring(runs, "done") / "checkpoint/model.safetensors", 0.9)
    refuse(capfd, ["evaluate", "done", *data_flags(Path("rows.csv"))], "model.safetensors", "cut short")


def test_checkpoint_of_another_head(here, runs, capfd):
    bring(runs, "done")
    write_rows(Path("three.csv"), 30, classes=3)
    refuse(capfd, ["evaluate", "done", *data_flags(Path("three.csv"))], "a head for 2 classes", "needs 3 classes")
    shutil.rmtree("model")
    save_tiny_model(Path("model"), labels=1)
    refuse(capfd, ["evaluate", "model", *data_flags(Path("rows.csv"))], "a regression head", "needs 2 classes")


def test_checkpoint_without_a_head(here, capfd):
    save_weights(lambda weights: [weights.pop(name) for name in list(weights) if name.startswith("classifier")])
    refuse(capfd, ["evaluate", "model", *data_flags(Path("rows.csv"))], "not a trained classifier", "classifier.bias")


def test_two_processes_cannot_train_in_one_folder(here, runs, capfd):
    from scala_lab.training.run_dir import locked

    with locked(Path("out")):
        refuse(capfd, train(), "another process is training in out")
    bring(runs, "broken")
    with locked(Path("broken")):
        refuse(capfd, ["train", "--out", "broken", "--resume"], "another process is training in broken")


@pytest.mark.parametrize(
    ("damage", "changes", "words"),
    [
        (lambda: truncate(Path("model/model.safetensors"), 0.9), {}, ["cut short"]),
        (lambda: save_weights(lambda weights: weights[LAYER].fill_(float("inf"))), {}, ["not finite", LAYER]),
        (lambda: None, {"device": "cuda"}, ["no CUDA device"]),
        (lambda: None, {"out": "done"}, ["another run", "workers: 1 -> 2"]),
        (lambda: Path("rows.csv").write_text("text,label\nw1\n"), {}, ["rows.csv line 2 has 1 fields"]),
    ],
)
def test_fault_is_found_before_workers_are_started(here, runs, capfd, monkeypatch, damage, changes, words):
    def start(*_, **__):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("scala_lab.training.distributed.subprocess.Popen", start)
    bring(runs, "done")
    damage()
    refuse(capfd, train(workers=2, **changes), *words)


def test_fault_found_by_both_workers_is_said_once(here, runs, capfd):
    """The saved state is read by the workers alone."""
    from scala_lab.config import RunSpec

    broken = bring(runs, "broken")
    record = json.loads((broken / "run.json").read_text())
    record["spec"]["machine"]["workers"] = 2
    record["id"] = RunSpec.from_dict(record["spec"]).run_id
    (broken / "run.json").write_text(json.dumps(record))
    (state,) = broken.glob("state/*")
    truncate(state / "weights.safetensors", 0.5)
    refuse(capfd, ["train", "--out", "broken", "--resume"], str(state), "cut short")
