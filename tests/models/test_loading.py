"""Loading a model: a seeded head, its outputs by the names of classes, nothing made up in silence."""

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
from scala_lab.data.tokens import Padding, TokenSplit, collate
from scala_lab.errors import UserError
from scala_lab.models.loading import (
    hidden_size,
    load_classifier,
    load_tokenizer,
    locate_model,
    logits_layer,
    model_fingerprint,
    order_outputs,
    settle_pad_token,
)
from scala_lab.training.preparation import prepare_data
from tests.command_line import data_flags, flags, refuse, strict_json, train_flags
from tests.tiny import ARCHITECTURES, save_tiny_model, write_rows

TWO = Task("own", ("text",), "label", ("0", "1"))
THREE = Task("own", ("text",), "label", ("a", "b", "c"))
SCORE = Task("own", ("text",), "label", ())


@pytest.fixture
def model(tmp_path, tiny_bert):
    return shutil.copytree(tiny_bert, tmp_path / "model")


def change_weights(folder, change):
    """Replace the weights of a folder by what a function makes of them."""
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without(folder, *parts):
    """Drop the weights whose name holds one of these words."""

    def drop(weights):
        return {name: value for name, value in weights.items() if not any(part in name for part in parts)}

    return change_weights(folder, drop)


def same(left, right) -> bool:
    return all(a.equal(b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_new_head_is_seeded_and_the_encoder_is_not(tmp_path, architecture):
    folder = str(save_tiny_model(tmp_path, architecture))
    zero, again, one = (load_classifier(folder, THREE, seed=seed) for seed in (0, 0, 1))
    assert same(zero, again)
    assert not same(zero, one)
    assert same(zero.base_model, one.base_model)
    assert zero.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_loading_leaves_the_random_state_alone(tiny_bert):
    before = torch.get_rng_state()
    load_classifier(str(tiny_bert), THREE, seed=3)
    assert torch.get_rng_state().equal(before)


def test_encoder_without_pooler_takes_a_fresh_one(model):
    without(model, "pooler", "classifier")
    zero, one = (load_classifier(str(model), TWO, seed=seed) for seed in (0, 1))
    assert not zero.bert.pooler.dense.weight.equal(one.bert.pooler.dense.weight)
    assert same(zero.bert.encoder, one.bert.encoder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropout_override_sets_every_rate(tmp_path, architecture):
    folder = str(save_tiny_model(tmp_path, architecture, dropout=0.1))
    for rate in (0.0, 0.3):
        loaded = load_classifier(folder, TWO, dropout=rate)
        rates = {module.p for module in loaded.modules() if isinstance(module, torch.nn.Dropout)}
        assert rates == {rate}
        named = {name: value for name, value in loaded.config.to_dict().items() if "dropout" in name}
        assert set(named.values()) == {rate}
    kept = load_classifier(folder, TWO)
    assert {module.p for module in kept.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_width_and_tokenizer(tmp_path, architecture):
    folder = str(save_tiny_model(tmp_path, architecture))
    assert hidden_size(load_classifier(folder, TWO)) == 16
    tokenizer = load_tokenizer(folder)
    assert ("token_type_ids" in tokenizer.model_input_names) == (architecture in ("bert", "electra", "albert"))


def test_half_precision_checkpoint_is_trained_in_float32(model):
    change_weights(model, lambda weights: {n: v.half() if v.is_floating_point() else v for n, v in weights.items()})
    assert {parameter.dtype for parameter in load_classifier(str(model), TWO).parameters()} == {torch.float32}


def test_sharded_checkpoint(tmp_path, tiny_bert):
    whole = load_classifier(str(tiny_bert), TWO)
    whole.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert same(load_classifier(str(tmp_path), TWO), whole)
    next(iter(tmp_path.glob("model-00002*.safetensors"))).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        load_classifier(str(tmp_path), TWO)


def test_trained_head_must_fit_the_task(model, tmp_path):
    assert load_classifier(str(model), TWO, new_head=False).config.num_labels == 2
    with pytest.raises(UserError, match="a head for 2 classes, but task own needs 3 classes"):
        load_classifier(str(model), THREE, new_head=False)
    with pytest.raises(UserError, match="a head for 2 classes, but task own needs a regression head"):
        load_classifier(str(model), SCORE, new_head=False)
    one = save_tiny_model(tmp_path / "one", labels=1)
    assert load_classifier(str(one), SCORE, new_head=False).config.num_labels == 1
    with pytest.raises(UserError, match="a regression head, but task own needs 2 classes"):
        load_classifier(str(one), TWO, new_head=False)


def test_head_that_config_promises_but_weights_lack(model):
    without(model, "classifier.weight")
    with pytest.raises(UserError, match=r"not a trained classifier: its weights lack classifier\.weight$"):
        load_classifier(str(model), TWO, new_head=False)


def test_head_of_another_shape_than_config_says(model):
    change_weights(model, lambda weights: weights | {"classifier.weight": torch.zeros(5, 16)})
    with pytest.raises(UserError, match=r"classifier\.weight is \(5, 16\), not \(2, 16\)"):
        load_classifier(str(model), TWO, new_head=False)


@pytest.mark.parametrize("part", ["layer.1.output.dense.bias", "word_embeddings", "layer.0"])
def test_encoder_with_holes_is_refused(model, part):
    without(model, part)
    with pytest.raises(UserError, match=r"do not fit config\.json: they lack bert"):
        load_classifier(str(model), TWO)


def test_a_model_without_pad_token_is_given_one_that_no_row_has(model):
    loaded, tokenizer = load_classifier(str(model), TWO), load_tokenizer(str(model))
    rows = TokenSplit(np.arange(44, dtype=np.int32), np.array([0, 44]), None, np.zeros(1, np.int64))
    assert settle_pad_token(loaded, tokenizer, [rows]) == 0, "its own is kept, whatever the rows"
    loaded.config.pad_token_id = None
    assert settle_pad_token(loaded, tokenizer, [rows]) == 44
    assert loaded.config.pad_token_id == 44
    loaded.config.pad_token_id = -1
    with pytest.raises(UserError, match="whole vocabulary"):
        settle_pad_token(loaded, tokenizer, [rows, TokenSplit(rows.ids + 1, rows.offsets, None, rows.labels)])


def test_run_folder_stands_for_its_checkpoint(tmp_path, tiny_bert):
    shutil.copytree(tiny_bert, tmp_path / "run" / "checkpoint")
    assert locate_model(str(tmp_path / "run")) == str(tmp_path / "run" / "checkpoint")
    (tmp_path / "run" / "checkpoint" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        locate_model(str(tmp_path / "run"))


def test_hub_name_is_passed_on():
    assert locate_model("bert-base-uncased") == "bert-base-uncased"
    assert locate_model("google/electra-small-discriminator") == "google/electra-small-discriminator"


def test_fingerprint_tells_weights_apart(model, tiny_bert):
    assert model_fingerprint(str(model)) == model_fingerprint(str(tiny_bert)), "wherever it lies"
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)
    assert model_fingerprint(str(model)) != model_fingerprint(str(tiny_bert))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fresh_regression_head_starts_at_the_first_guess_and_a_trained_one_stays(tmp_path, architecture):
    trained = save_tiny_model(tmp_path / "trained", architecture, labels=1)
    bare = without(shutil.copytree(trained, tmp_path / "bare"), "classifier")
    plain, fresh = (load_classifier(str(bare), SCORE, first_guess=guess).eval() for guess in (None, 2.5))
    ids = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        torch.testing.assert_close(fresh(input_ids=ids).logits, plain(input_ids=ids).logits + 2.5)
    assert same(load_classifier(str(trained), SCORE, first_guess=2.5), load_classifier(str(trained), SCORE))


ROWS = 48
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
        head = ("classifier.weight", "classifier.bias")
        change_weights(folder, lambda weights: weights | {name: weights[name][order].contiguous() for name in head})
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
    without(model, "classifier")
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
