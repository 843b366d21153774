"""`scala-lab evaluate`: the numbers of the run, from its checkpoint alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from scala_lab.cli import main
from tests.command_line import data_flags, train_flags
from tests.tiny import save_tiny_model, write_rows

ROUNDINGS = 32
"""How many roundings of float32 a model's output may be off by, of its own size."""


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_bert):
    """A folder with a run on two classes, `classes`, and one on scores, `scores`, beside their rows."""
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_rows(folder / "classes.csv", 48)
        write_rows(folder / "scores.csv", 48, kind="scores")
        assert main(train_flags(tiny_bert, Path("classes.csv"), out="classes", heldout_samples=8, lr=0.05)) == 0
        model = spread_out(save_tiny_model(folder / "model", "roberta", labels=1))
        assert main(train_flags(model, Path("scores.csv"), out="scores", regression=True, precision="float64")) == 0
    return folder


def spread_out(model: Path) -> Path:
    """Have a regression model tell rows apart by more than rounding: correlations follow from the differences."""
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["classifier.out_proj.weight"] *= 20
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    return tmp_path


@pytest.mark.parametrize("task", ["classes", "scores"])
def test_metrics_are_those_of_the_run(here, capfd, task):
    more = {"regression": True} if task == "scores" else {"heldout_samples": 8}
    for number, checkpoint in enumerate((task, f"{task}/checkpoint")):
        file, rows = here / f"{number}.json", here / f"{number}.jsonl"
        arguments = data_flags(Path(f"{task}.csv"), json=file, predictions=rows, **more)
        assert main(["evaluate", checkpoint, *arguments]) == 0
        (found,) = json.loads(file.read_text())
        stored = json.loads(Path(task, "run.json").read_text())["metrics"]
        assert set(found["metrics"]) == set(stored)
        if task == "scores":
            # weights were float64 in training and are float32 here: errors over spread is what a correlation feels
            scores = np.array([json.loads(line)["prediction"] for line in rows.read_text().splitlines()])
            error = ROUNDINGS * np.finfo(np.float32).eps * np.abs(scores).max()
            tolerance = 2 * error / scores.std()
            assert tolerance < 1e-3
            assert np.diff(np.sort(scores)).min() > 2 * error, "rounding changes no rank"
        else:
            tolerance = 0.0
        for split, metrics in stored.items():
            assert found["metrics"][split] == pytest.approx(metrics, rel=0, abs=tolerance)
        out, err = capfd.readouterr()
        assert all(f"{value:.4f}" in out for metrics in found["metrics"].values() for value in metrics.values())
        assert all(str(rows) in line for line in err.splitlines()), "where it was written, and no complaint"


def test_stock_transformers_give_the_same_predictions(here):
    """Anybody can load a run's checkpoint: label names, tokenizer and weights are in it."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert main(["evaluate", "classes", *data_flags(Path("classes.csv"), predictions=here / "p.jsonl")]) == 0
    rows = [json.loads(line) for line in (here / "p.jsonl").read_text().splitlines()]
    model = AutoModelForSequenceClassification.from_pretrained("classes/checkpoint")
    tokenizer = AutoTokenizer.from_pretrained("classes/checkpoint")
    with Path("classes.csv").open() as stream:
        texts = list(csv.DictReader(stream))
    with torch.inference_mode():
        logits = model(**tokenizer([row["text"] for row in texts], padding=True, return_tensors="pt")).logits
    assert [model.config.id2label[int(index)] for index in logits.argmax(-1)] == [row["prediction"] for row in rows]
    assert [row["label"] for row in rows] == [row["label"] for row in texts], "in the order of the file"
    outputs = np.array([[row["output_0"], row["output_1"]] for row in rows])
    np.testing.assert_allclose(outputs, logits.numpy(), atol=1e-5)
    accuracy = np.mean([row["label"] == row["prediction"] for row in rows])
    assert accuracy == json.loads(Path("classes/run.json").read_text())["metrics"]["dev"]["accuracy"]


def test_predictions_have_one_line_per_checkpoint_and_row(here, capfd):
    file = here / "p.csv"
    arguments = data_flags(Path("classes.csv"), heldout_samples=8, predictions=file)
    assert main(["evaluate", "classes", "classes/checkpoint", *arguments]) == 0
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * (48 + 8)
    assert list(rows[0]) == ["checkpoint", "split", "row", "label", "prediction", "output_0", "output_1"]
    assert {row["checkpoint"] for row in rows} == {"classes", "classes/checkpoint"}
    assert [row["row"] for row in rows if row["checkpoint"] == "classes" and row["split"] == "dev"] == [
        str(row) for row in range(48)
    ]
    assert str(file) in capfd.readouterr().err, "where it was written is no result"


def test_scores_are_numbers_in_the_predictions(here):
    file = here / "p.jsonl"
    assert main(["evaluate", "scores", *data_flags(Path("scores.csv"), regression=True, predictions=file)]) == 0
    row = json.loads(file.read_text().splitlines()[0])
    assert row["prediction"] == row["output_0"]
    assert isinstance(row["label"], float)


def test_micro_batch_changes_nothing(here):
    for size in (1, 64):
        arguments = data_flags(Path("classes.csv"), micro_batch=size, predictions=here / f"{size}.jsonl")
        assert main(["evaluate", "classes", *arguments]) == 0
    left, right = (
        np.array([json.loads(line)["output_0"] for line in (here / f"{size}.jsonl").read_text().splitlines()])
        for size in (1, 64)
    )
    np.testing.assert_allclose(left, right, atol=1e-5)


def test_evaluating_writes_nothing_that_was_not_asked_for(here, place):
    before = sorted(place.rglob("*"))
    assert main(["evaluate", "classes", *data_flags(Path("classes.csv"))]) == 0
    assert sorted(place.rglob("*")) == before


def test_head_of_one_output_is_regression_even_if_its_config_does_not_say(here, place, tmp_path):
    model = save_tiny_model(tmp_path / "model", labels=1)
    settings = json.loads((model / "config.json").read_text())
    settings.pop("problem_type", None)
    (model / "config.json").write_text(json.dumps(settings))
    assert main(["evaluate", str(model), *data_flags(Path("scores.csv"), regression=True)]) == 0


def test_run_folder_says_itself_which_rows_are_meant(here, capfd):
    for checkpoint in ("classes", "classes/checkpoint"):
        file = here / f"{Path(checkpoint).name}.json"
        assert main(["evaluate", checkpoint, "--threads", "1", "--json", str(file)]) == 0
        (found,) = json.loads(file.read_text())
        assert found["metrics"] == json.loads(Path("classes/run.json").read_text())["metrics"]
    assert main(["evaluate", "model"]) == 2
    assert "--task is needed: model does not say what it was trained on" in capfd.readouterr().err
