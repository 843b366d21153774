"""States and checkpoints: bit for bit what was saved, complete or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from scala_lab.config import RunSpec
from scala_lab.data.tasks import Task
from scala_lab.errors import UserError
from scala_lab.models.loading import load_classifier, load_tokenizer
from scala_lab.optim.build import build_optimizer
from scala_lab.training.run_dir import latest_state, load_state, save_checkpoint, save_state
from tests.command_line import snapshot

TASK = Task("own", ("text",), "label", ("no", "yes"))


def trained(model_folder: Path, optimizer: str, steps: int):
    """A model and its optimizer after a few steps along made-up gradients."""
    model = load_classifier(str(model_folder), TASK)
    spec = RunSpec.of(method="plain", optimizer=optimizer, threads=1).resolved()
    built = build_optimizer(model, spec.optim, 0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step_along(model, built, generator)
    return model, built, generator


def step_along(model, optimizer, generator) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "ngd"])
def test_restored_state_goes_on_bit_for_bit(tmp_path, tiny_bert, optimizer):
    model, built, generator = trained(tiny_bert, optimizer, 3)
    save_state(tmp_path, 3, model, built, {"steps_done": 3, "best": None})
    other, its_optimizer, _ = trained(tiny_bert, optimizer, 0)
    assert load_state(latest_state(tmp_path), other, its_optimizer) == {"steps_done": 3, "best": None}
    again = generator.clone_state()
    for _ in range(2):
        step_along(model, built, generator)
        step_along(other, its_optimizer, again)
    for (name, left), right in zip(model.named_parameters(), other.parameters(), strict=True):
        assert left.equal(right), name


def test_only_the_newest_state_is_kept(tmp_path, tiny_bert):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    assert latest_state(tmp_path) is None
    for step in (9, 10, 100_000_000):
        save_state(tmp_path, step, model, built, {})
        assert [path.name for path in tmp_path.iterdir()] == [f"{step:08d}"]
        assert latest_state(tmp_path).name == f"{step:08d}"
    assert latest_state(tmp_path / "none") is None


def test_failed_save_leaves_the_state_before(tmp_path, tiny_bert, monkeypatch):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {"steps_done": 1})
    before = snapshot(tmp_path)

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        save_state(tmp_path, 2, model, built, {"steps_done": 2})
    assert snapshot(tmp_path) == before


def test_half_a_state_is_not_taken_for_one(tmp_path, tiny_bert):
    """A kill while a state is written leaves its temporary folder."""
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {})
    (tmp_path / ".00000002.abc").mkdir()
    assert latest_state(tmp_path).name == "00000001"
    save_state(tmp_path, 3, model, built, {})
    assert [path.name for path in tmp_path.iterdir()] == ["00000003"], "the half one is cleared away"


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "position.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, None])
def test_damaged_state_is_refused_and_the_model_untouched(tmp_path, tiny_bert, name, share):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {"steps_done": 1})
    file = latest_state(tmp_path) / name
    content = file.read_bytes()
    file.unlink() if share is None else file.write_bytes(content[: int(share * len(content))])
    other, its_optimizer, _ = trained(tiny_bert, "lamb", 0)
    before = [parameter.detach().clone() for parameter in other.parameters()]
    with pytest.raises(UserError, match="cut short or damaged"):
        load_state(latest_state(tmp_path), other, its_optimizer)
    assert all(left.equal(right) for left, right in zip(before, other.parameters(), strict=True))


def test_state_of_another_model_is_refused(tmp_path, tiny_bert):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {})
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="another model"):
        load_state(latest_state(tmp_path), model, built)


def test_checkpoint_holds_all_that_from_pretrained_needs(tmp_path, tiny_bert):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, _, _ = trained(tiny_bert, "lamb", 2)
    save_checkpoint(tmp_path / "checkpoint", model, load_tokenizer(str(tiny_bert)))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint")
    assert loaded.config.id2label == {0: "no", 1: "yes"}
    for (name, left), right in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert left.equal(right), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer("w3 w4")["input_ids"] == load_tokenizer(str(tiny_bert))("w3 w4")["input_ids"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert json.loads((tmp_path / "checkpoint/config.json").read_text())["model_type"] == "bert"
