"""The outputs of a trained head mean the task's classes by name: one network gives one answer, whatever its order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scala_lab.cli import main
from scala_lab.config import DataSpec
from scala_lab.data.tasks import TASKS, Task
from scala_lab.data.tokens import Padding, collate
from scala_lab.errors import UserError
from scala_lab.models.loading import load_classifier, logits_layer, order_outputs
from scala_lab.training.preparation import prepare_data
from tests.command_line import data_flags, flags, refuse, strict_json, train_flags
from tests.tiny import ARCHITECTURES, save_tiny_model, write_rows

ROWS = 48
THREE = Task("own", ("text",), "label", ("a", "b", "c"))
QQP = ["not_duplicate", "duplicate"]


def rename(folder: Path, names: list[str] | None, order: list[int] | None = None, **settings: object) -> Path:
    """Give the outputs of a saved BERT other names, and with `order` put them into another order."""
    config = json.loads((folder / "config.json").read_text())
    for key in ("id2label", "label2id"):
        config.pop(key, None)
    if names is not None:
        config["id2label"] = dict(enumerate(names))
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    if order is not None:
        weights = load_file(folder / "model.safetensors")
        for name in ("classifier.weight", "classifier.bias"):
            weights[name] = weights[name][order].contiguous()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """A network for mini-qqp that says `duplicate`, its output 1, of about half the rows."""
    folder = save_tiny_model(tmp_path_factory.mktemp("labels") / "network")
    prepared = prepare_data(DataSpec(task="mini-qqp", eval_samples=ROWS), str(folder))
    model = load_classifier(str(folder), prepared.task)
    batch = collate(prepared.evals["dev"], np.arange(ROWS), Padding(0))
    del batch["labels"]
    with torch.no_grad():
        no, yes = model(**batch).logits.T
        model.classifier.bias[1] -= (yes - no).median()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "order", "label_names"),
    [
        (["NOT DUPLICATE", "Duplicate"], None, ()),
        (["duplicate", "not-duplicate"], [1, 0], ()),
        (["LABEL_0", "LABEL_1"], None, QQP),
        (None, [1, 0], ("duplicate", "Not-Duplicate")),
        (["yes", "no"], [1, 0], ("duplicate", "not_duplicate")),
    ],
)
def test_the_same_network_under_other_names_has_the_same_outputs(network, tmp_path, names, order, label_names):
    task = TASKS["mini-qqp"]
    model = rename(shutil.copytree(network, tmp_path / "model"), names, order)
    found = load_classifier(str(model), task, new_head=False, label_names=label_names)
    wanted = load_classifier(str(network), task, new_head=False)
    assert found.classifier.weight.equal(wanted.classifier.weight)
    assert found.classifier.bias.equal(wanted.classifier.bias)
    assert found.config.id2label == dict(enumerate(QQP))


def test_a_network_that_is_turned_round_has_the_same_accuracy_f1_predictions_and_sharpness(network, here):
    """Read by place, it has 1 - accuracy."""
    task = flags(task="mini-qqp", eval_samples=ROWS, train_samples=ROWS, threads=1)
    metrics, predictions, curvature = [], [], []
    for name, names, order in (("straight", QQP, None), ("turned", ["Duplicate", "not duplicate"], [1, 0])):
        model = rename(shutil.copytree(network, Path(name)), names, order)
        files = flags(json=f"{name}.json", predictions=f"{name}.jsonl")
        assert main(["evaluate", str(model), *task, *files]) == 0
        metrics.append(strict_json(Path(f"{name}.json").read_text())[0]["metrics"]["dev"])
        lines = [json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()]
        predictions.append([(line["label"], line["prediction"]) for line in lines])
        solver = flags(samples=16, precision="float64", json=f"{name}-sharp.json")
        assert main(["sharpness", str(model), *task, *solver]) == 0
        curvature.append(strict_json(Path(f"{name}-sharp.json").read_text())[0])
    assert abs(metrics[0]["accuracy"] - 0.5) > 0.01, "else 1 - accuracy is the same"
    assert metrics[0]["f1"] > 0
    assert metrics[1] == metrics[0]
    assert {prediction for _, prediction in predictions[0]} == set(QQP)
    assert predictions[1] == predictions[0]
    for what in ("loss", "eigenvalues"):
        assert curvature[1][what] == pytest.approx(curvature[0][what], rel=1e-6)


@pytest.mark.parametrize(
    ("names", "more", "said"),
    [
        (["LABEL_0", "LABEL_1"], {}, ["LABEL_0, LABEL_1", "not_duplicate, duplicate", "give --label-names"]),
        (None, {}, ["LABEL_0, LABEL_1", "give --label-names"]),
        (["LABEL_1", "LABEL_0"], {}, ["LABEL_1, LABEL_0", "give --label-names"]),
        (["negative", "positive"], {}, ["negative, positive", "not_duplicate, duplicate", "give --label-names"]),
        (["duplicate", "duplicate"], {}, ["id2label in config.json has 'duplicate' twice"]),
        (QQP, {"label_names": ("duplicate",)}, ["--label-names must be the classes of task mini-qqp", "not duplicate"]),
        (QQP, {"label_names": ("duplicate", "duplicate")}, ["not duplicate, duplicate"]),
        (QQP, {"label_names": ("0", "1")}, ["not_duplicate, duplicate, not 0, 1"]),
        (QQP, {"label_names": QQP[::-1]}, ["in the order not_duplicate, duplicate", "--label-names says duplicate"]),
    ],
)
def test_names_that_do_not_say_which_output_is_which_class(tmp_path, tiny_bert, names, more, said):
    model = rename(shutil.copytree(tiny_bert, tmp_path / "model"), names)
    with pytest.raises(UserError) as refused:
        load_classifier(str(model), TASKS["mini-qqp"], new_head=False, **more)
    for words in said:
        assert words in str(refused.value)


def test_classes_of_a_file_are_not_matched_by_their_place(tiny_bert, here, capfd):
    Path("rows.csv").write_text("text,label\nw1,no\nw2,yes\n")
    said = "calls its outputs LABEL_0, LABEL_1, and the classes of task rows.csv are no, yes: give --label-names"
    for command in ("evaluate", "sharpness"):
        refuse(capfd, [command, str(tiny_bert), *data_flags(Path("rows.csv"))], said)
    assert main(["evaluate", str(tiny_bert), *data_flags(Path("rows.csv"), label_names=("yes", "no"))]) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "must number the outputs from 0, not 1, 2, 3"),
        (
            {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 1, "b": 0, "c": 2}},
            "id2label and label2id in config.json contradict each other",
        ),
        ({"id2label": {"0": "a", "1": "b"}}, "a head for 2 classes, but task own needs 3 classes"),
    ],
)
def test_config_that_contradicts_itself(tmp_path, settings, said):
    model = rename(save_tiny_model(tmp_path, labels=3), None, **settings)
    with pytest.raises(UserError, match=said):
        load_classifier(str(model), THREE, new_head=False)


def test_generic_names_match_classes_that_are_their_numbers(tmp_path):
    model = str(save_tiny_model(tmp_path, labels=3))
    numbers, gap, turned = (
        Task("own", ("text",), "label", names) for names in (("0", "1", "2"), ("0", "1", "3"), tuple("210"))
    )
    load_classifier(model, numbers, new_head=False)
    for task in (gap, turned):
        with pytest.raises(UserError, match="LABEL_0, LABEL_1, LABEL_2, and the classes"):
            load_classifier(model, task, new_head=False)


@pytest.mark.parametrize(
    ("names", "classes", "order"),
    [
        (("-1", "0", "1"), ("-1", "0", "1"), (0, 1, 2)),
        (("1", "-1", "0"), ("-1", "0", "1"), (1, 2, 0)),
        (("b", "A", "a"), ("A", "a", "b"), (1, 2, 0)),
        (("B", "A", "a"), ("A", "a", "b"), None),
        (("Not Entailment", "ENTAILMENT", "neutral"), ("entailment", "neutral", "not_entailment"), (1, 2, 0)),
    ],
)
def test_names_are_matched_but_for_case_and_separators(tmp_path, names, classes, order):
    """Classes that differ only so are matched exactly, and a minus is no separator."""
    model = rename(save_tiny_model(tmp_path, labels=3), list(names))
    task = Task("own", ("text",), "label", classes)
    if order is None:
        with pytest.raises(UserError, match="give --label-names"):
            load_classifier(str(model), task, new_head=False)
        return
    weights = load_file(model / "model.safetensors")
    loaded = load_classifier(str(model), task, new_head=False)
    assert loaded.classifier.weight.equal(weights["classifier.weight"][list(order)])
    assert loaded.config.id2label == dict(enumerate(classes))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("flat", [False, True], ids=["random head", "head of zeros"])
def test_reordered_logits_are_the_same_numbers(tmp_path, architecture, flat):
    model = load_classifier(str(save_tiny_model(tmp_path, architecture, labels=3)), THREE).double()
    _, layer = logits_layer(model, 3)
    if flat:
        torch.nn.init.zeros_(layer.weight)
        with torch.no_grad():
            layer.bias.copy_(torch.arange(3))
    ids = torch.tensor([[2, 7, 9, 3], [2, 8, 11, 3]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        order_outputs(model, (2, 0, 1), "it")
        torch.testing.assert_close(model(input_ids=ids).logits, before[:, [2, 0, 1]], rtol=1e-13, atol=1e-13)


def test_head_whose_logits_no_linear_layer_makes(tmp_path):
    """A function behind the last layer, or weights that other layers share, cannot be put into another order."""
    model = load_classifier(str(save_tiny_model(tmp_path, labels=3)), THREE)
    model.classifier = torch.nn.Sequential(model.classifier, torch.nn.Softmax(dim=-1))
    with pytest.raises(UserError, match="no linear layer makes its logits"):
        order_outputs(model, (2, 0, 1), "it")
    wide = load_classifier(
        str(save_tiny_model(tmp_path / "wide", labels=16)), Task("own", ("text",), "label", tuple("abcdefghijklmnop"))
    )
    wide.classifier.weight = wide.bert.pooler.dense.weight
    with pytest.raises(UserError, match="classifier, which makes its logits, shares its weights"):
        order_outputs(wide, (1, 0, *range(2, 16)), "it")


def test_fine_tuning_goes_on_with_a_head_in_the_order_of_the_task(tmp_path):
    """So that its classes mean what the new checkpoint's config says; a head of other names is kept as it is."""
    model = rename(save_tiny_model(tmp_path, labels=3), ["C", "a", "b"])
    weights = load_file(model / "model.safetensors")["classifier.weight"]
    assert load_classifier(str(model), THREE).classifier.weight.equal(weights[[1, 2, 0]])
    rename(model, None)
    assert load_classifier(str(model), THREE).classifier.weight.equal(weights)
    named = load_classifier(str(model), THREE, label_names=("b", "c", "a"))
    assert named.classifier.weight.equal(weights[[2, 0, 1]])
    rename(model, ["x", "x", "y"])
    assert load_classifier(str(model), THREE).classifier.weight.equal(weights)


def test_fresh_head_has_no_names(tmp_path):
    model = rename(save_tiny_model(tmp_path, labels=3), ["c", "a", "b"])
    weights = load_file(model / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "classifier" not in name},
        model / "model.safetensors",
        metadata={"format": "pt"},
    )
    fresh = load_classifier(str(model), THREE).classifier.weight
    rename(model, None)
    assert load_classifier(str(model), THREE).classifier.weight.equal(fresh)
    with pytest.raises(UserError, match="no trained head for 3 classes: leave out --label-names"):
        load_classifier(str(model), THREE, label_names=("a", "b", "c"))


def test_label_names_are_for_classes(tmp_path, here, capfd):
    model = save_tiny_model(tmp_path / "model", labels=1)
    write_rows(Path("rows.csv"), 8, kind="scores")
    arguments = data_flags(Path("rows.csv"), regression=True, label_names=("a", "b"))
    refuse(capfd, ["evaluate", str(model), *arguments], "--label-names is for classes; task rows.csv predicts a number")


def test_label_names_of_a_run_are_those_of_the_model_it_started_from(tmp_path, here):
    """Its own checkpoint has the task's names, and its folder says which rows are meant, not which names."""
    model = save_tiny_model(tmp_path / "model")
    Path("rows.csv").write_text(
        "text,label\n" + "".join(f"w{n} w{n + 1},{'no' if n % 2 else 'yes'}\n" for n in range(16))
    )
    assert main(train_flags(model, Path("rows.csv"), label_names=("yes", "no"), epochs=1, lr=1e-9)) == 0
    stored = json.loads(Path("out/run.json").read_text())
    assert stored["spec"]["data"]["label_names"] == ["yes", "no"]
    assert main(["evaluate", "out", "--threads", "1", "--json", "found.json"]) == 0
    (found,) = json.loads(Path("found.json").read_text())
    assert found["metrics"]["dev"] == stored["metrics"]["dev"]
    trained, start = (load_file(folder / "model.safetensors") for folder in (Path("out/checkpoint"), model))
    name = "classifier.weight"
    torch.testing.assert_close(trained[name], start[name][[1, 0]], rtol=1e-4, atol=1e-4)
