"""What loading a model promises: a seeded head, the dropout that was asked for, nothing made up in silence."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scala_lab.data.tasks import Task
from scala_lab.data.tokens import TokenSplit
from scala_lab.errors import UserError
from scala_lab.models.loading import (
    hidden_size,
    load_classifier,
    load_tokenizer,
    locate_model,
    model_fingerprint,
    settle_pad_token,
)
from tests.tiny import ARCHITECTURES, save_tiny_model

TWO = Task("own", ("text",), "label", ("0", "1"))
THREE = Task("own", ("text",), "label", ("a", "b", "c"))
SCORE = Task("own", ("text",), "label", ())


@pytest.fixture
def model(tmp_path, tiny_bert):
    return shutil.copytree(tiny_bert, tmp_path / "model")


def without(folder, *parts):
    """Drop the weights whose name holds one of these words."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not any(part in name for part in parts)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


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
    weights = load_file(model / "model.safetensors")
    halves = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    save_file(halves, model / "model.safetensors", metadata={"format": "pt"})
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
    weights = load_file(model / "model.safetensors")
    weights["classifier.weight"] = torch.zeros(5, 16)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
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
