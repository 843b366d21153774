"""A run that would end before its noise starts is refused: it would have the method's name and be plain training."""

from __future__ import annotations

from pathlib import Path

import pytest

from scala_lab import RunSpec, train
from scala_lab.errors import UserError
from scala_lab.methods.recipes import RECIPES
from tests.command_line import own_rows, refuse, train_flags
from tests.tiny import write_rows

DELAYED = [name for name, recipe in RECIPES.items() if "delay" in recipe.option_values()]


@pytest.fixture
def rows(tmp_path, monkeypatch) -> Path:
    """48 rows: 3 steps of 16 in an epoch."""
    monkeypatch.chdir(tmp_path)
    return write_rows(tmp_path / "rows.csv", 48)


def spec(rows: Path, model: Path, **changes: object) -> RunSpec:
    run = {"method": "scala", "batch_size": 16, "micro_batch": 16, "epochs": 2, "lr": 1e-3, "threads": 1}
    return RunSpec.of(**own_rows(rows), model=str(model), **{**run, **changes})


@pytest.mark.parametrize("method", DELAYED)
def test_epochs_alone_tell(method):
    delay = RECIPES[method].option_values()["delay"] or 2.0
    RunSpec.of(method=method, delay=delay, epochs=int(delay) + 1).resolved()
    with pytest.raises(UserError, match=rf"noise after --delay {delay:g} epochs, and a run of --epochs {delay:g} ends"):
        RunSpec.of(method=method, delay=delay, epochs=int(delay)).resolved()


@pytest.mark.parametrize(
    "changes",
    [
        {"lambda_": 0.0},
        {"delay_rule": "settled"},
        {"delay": 1.5},
        {"method": "lamb"},
        {"method": "freelb"},
    ],
    ids=str,
)
def test_ways_out_and_methods_without_delay(changes):
    RunSpec.of(**{"method": "scala", "epochs": 2, **changes}).resolved()


@pytest.mark.parametrize(
    ("changes", "noised"),
    [
        ({"delay": 1.0, "max_steps": 4}, 16),
        ({"delay": 1.0, "max_steps": 3}, None),
        ({"delay": 1.6}, 16),
        ({"delay": 1.7}, None),
        ({"delay": 0.0, "max_steps": 1}, 16),
    ],
    ids=str,
)
def test_a_run_that_is_trained_has_noise(rows, tiny_bert, changes, noised):
    """Of 6 steps the last starts at 5/3 of an epoch: a delay of 1.7 is over only after it."""
    run = spec(rows, tiny_bert, **changes)
    if noised is not None:
        assert train(run, "out").record["counts"]["noised_samples"] == noised
        return
    steps = changes.get("max_steps", 6)
    with pytest.raises(
        UserError, match=f"--delay {changes['delay']:g} epochs, and a run of {steps} steps, 3 per epoch,"
    ):
        train(run, "out")
    assert not Path("out").exists()


def test_command_line_names_the_ways_out(rows, tiny_bert, capfd):
    remedies = ["a smaller --delay", "more epochs", "--method lamb", "--lambda 0"]
    refuse(capfd, train_flags(tiny_bert, rows, method="scala"), "--delay 5", "--epochs 3", *remedies)
    refuse(capfd, train_flags(tiny_bert, rows, method="scala", delay=2, max_steps=6), "6 steps, 3 per epoch", *remedies)
    refuse(capfd, train_flags(tiny_bert, rows, method="scala", delay=2, max_steps=6, workers=2), "6 steps", *remedies)


def test_sweep_does_not_train_rows_that_are_another_methods(rows, tiny_bert, capfd):
    """Declared for too few epochs, a method's runs would equal LAMB's to the last digit."""
    from scala_lab.sweep.cost import plan

    with pytest.raises(UserError, match="ends before"):
        plan(spec(rows, tiny_bert))
