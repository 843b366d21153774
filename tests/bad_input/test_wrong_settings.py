"""Bad settings: one clear sentence, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.mistakes import train
from tests.command_line import refuse, snapshot

WRONG_SETTINGS = [
    ({"method": "scla"}, ["unknown method 'scla'", "did you mean 'scala'?"]),
    ({"task": "sst-2"}, ["unknown task 'sst-2'", "did you mean", "sst2"]),
    ({"batch_sise": 8}, ["unknown flag '--batch-sise'", "did you mean '--batch-size'?"]),
    ({"batch_size": "many"}, ["--batch-size must be a whole number, not 'many'"]),
    ({"batch_size": 1.5}, ["--batch-size must be a whole number, not '1.5'"]),
    ({"lr": "fast"}, ["--lr must be a number, not 'fast'"]),
    ({"optimizer": "lamp"}, ["--optimizer must be one of adamw, lamb, ngd, not 'lamp'"]),
    ({"device": "gpu"}, ["--device must be one of auto, cpu, cuda"]),
    ({"rho": 0.1}, ["method 'lamb' has no option 'rho'", "scala"]),
    ({"method": "scala", "adv_lr": 0.1}, ["method 'scala' has no option 'adv_lr'", "freelb"]),
    ({"batch_size": 0}, ["--batch-size must be at least 1, not 0"]),
    ({"batch_size": -8}, ["--batch-size must be at least 1, not -8"]),
    ({"batch_size": 2, "workers": 3}, ["--batch-size 2 is smaller than --workers 3"]),
    ({"micro_batch": 0}, ["--micro-batch must be at least 1, not 0"]),
    ({"workers": 0}, ["--workers must be at least 1, not 0"]),
    ({"threads": 0}, ["--threads must be at least 1, not 0"]),
    ({"epochs": 0}, ["--epochs must be at least 1, not 0"]),
    ({"max_steps": 0}, ["--max-steps must be at least 1, not 0"]),
    ({"lr": "nan"}, ["--lr must be", "nan"]),
    ({"lr": "inf"}, ["--lr must be", "finite"]),
    ({"lr": 0}, ["--lr must be a positive number, not 0"]),
    ({"lr": -0.1}, ["--lr must be a positive number, not -0.1"]),
    ({"weight_decay": "inf"}, ["--weight-decay must be a finite number"]),
    ({"method": "scala", "omega": "nan"}, ["--omega must be at least 0, not nan"]),
    ({"seed": -1}, ["--seed must be at least 0, not -1"]),
    ({"seed": 2**63}, ["--seed must be below 2^63"]),
    ({"dropout": 1}, ["--dropout must be below 1"]),
    ({"save_every": "nan"}, ["--save-every must be at least 0, not nan"]),
    ({"save_every": -1}, ["--save-every must be at least 0, not -1"]),
    ({"max_length": 1}, ["--max-length must be at least 4, not 1"]),
    ({"train_samples": 49}, ["--train-samples 49", "48 train rows"]),
    ({"eval_samples": 49}, ["--eval-samples 49", "48 rows"]),
    ({"heldout_samples": 48}, ["--heldout-samples 48", "48 train rows"]),
    ({"lr": None, "lr_scaling": "sqrt"}, ["--lr-scaling sqrt needs --lr"]),
    ({"out": "rows.csv"}, ["rows.csv is a file: --out takes a folder"]),
    ({"out": "rows.csv/run"}, ["rows.csv is a file: --out takes a folder"]),
    ({"out": "model"}, ["model is not empty and holds no run"]),
    ({"config": "none.toml"}, ["config file none.toml does not exist"]),
    ({"config": "model"}, ["config file model cannot be read"]),
    ({"config": "rows.csv"}, ["config file rows.csv cannot be read as TOML"]),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_SETTINGS, ids=lambda value: str(value)[:60])
def test_wrong_setting(here, capfd, changes, words):
    refuse(capfd, train(**changes), *words)
    assert not (here / "cache").exists(), "rows were tokenised for a run that could not start"


@pytest.mark.parametrize("arguments", [["--out"], ["--resume", "--out"], ["--config"], ["--config", "x.toml", "--out"]])
def test_flag_without_its_value(here, capfd, arguments):
    refuse(capfd, ["train", *arguments], f"{arguments[-1]} needs a value")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch_sise = 8", ["unknown key 'batch_sise'", "did you mean 'batch_size'?"]),
        ("[optim]\nlearning_rate = 0.1", ["unknown key 'learning_rate' in [optim]"]),
        ("[optim]\nwarm_up = 0.1", ["did you mean 'warmup'?"]),
        ("batch_size = '8'", ["batch_size must be a whole number, not '8'"]),
        ("batch_size = 8.0", ["batch_size must be a whole number, not 8.0"]),
        ("lr = true", ["lr must be a number, not True"]),
        ("optimizer = 'lamp'", ["optimizer is 'lamp'", "did you mean 'lamb'?"]),
        ("text_columns = 3", ["text_columns must be a list of strings"]),
        ("seed = -3", ["--seed must be at least 0, not -3"]),
        ("batch_size = ", ["run.toml cannot be read as TOML"]),
    ],
)
def test_config_file_with_a_mistake(here, capfd, text, words):
    Path("run.toml").write_text(text)
    refuse(capfd, ["train", "--config", "run.toml"], "run.toml" if "--" not in words[0] else "", *words)


def test_snapshot_sees_any_change(here):
    before = snapshot(here)
    Path("model/config.json").write_text("{}")
    assert snapshot(here) != before
    Path("empty").mkdir()
    assert "empty" in snapshot(here)
