"""Radii in units of the encoder's word embeddings: an encoder on another scale gets the same noise on that scale."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from scala_lab.cli import main
from scala_lab.methods.recipes import absolute_radii
from tests.command_line import interrupted_after, strict_json, train_flags
from tests.tiny import save_tiny_model, write_rows
from tests.training.recipe_runs import make_training, recipe_spec

NOISY = {
    "normalized": {"method": "scala-effective", "omega": 0.2, "rho": 0.1},
    "literal, true label": {"method": "scala", "omega": 0.2, "rho": 0.5, "target": "GT"},
    "gaussian": {"method": "gaussian", "omega": 0.2},
    "FreeLB": {"method": "freelb", "adv_scale": 0.5},
    "FreeLB, linf": {"method": "freelb", "adv_norm": "linf"},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two encoders that compute the same: LayerNorm undoes the factor 4 on all embeddings of the second."""
    folder = tmp_path_factory.mktemp("models")
    one, four = folder / "one", folder / "four"
    for model in (one, four):
        save_tiny_model(model)
    larger = transformers.AutoModelForSequenceClassification.from_pretrained(four)
    with torch.no_grad():
        for table in larger.bert.embeddings.children():
            if isinstance(table, torch.nn.Embedding):
                table.weight.mul_(4)
    larger.save_pretrained(four)
    return {1: one, 4: four}


def last_noise(model, rows, method, **options):
    """What a step adds to the word embeddings in its last pass, and the gradient of the weights after them."""
    options |= {"sigma": 1e-9} if "scala" in method else {}
    training = make_training(recipe_spec(method, model, rows, micro_batch=16, radius_unit="embedding", **options))
    logits, table, found = training.encoder.logits, training.word_table, []

    def recording(embeddings, inputs):
        found.append((embeddings - table[inputs["input_ids"]]).detach())
        return logits(embeddings, inputs)

    training.encoder.logits = recording
    training.accumulate(0)
    blocks = [p.grad.flatten() for name, p in training.model.named_parameters() if "embeddings" not in name]
    return found[-1], torch.cat(blocks)


@pytest.mark.parametrize("name", NOISY)
def test_noise_grows_with_the_word_embeddings(name, models, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 16)
    (noise, gradient), (larger, same) = (last_noise(models[scale], rows, **NOISY[name]) for scale in (1, 4))
    assert noise.norm() > 0
    assert float((larger - 4 * noise).norm() / noise.norm()) < 1e-5
    assert float((same - gradient).norm() / gradient.norm()) < 1e-5


def test_radii_by_hand():
    scala = {"omega": 1.0, "rho": 2.0, "sigma": 1e-5, "ascent": "normalized", "radius_unit": "embedding"}
    found = absolute_radii(scala, 3.0, 16)
    assert found["omega"] * math.sqrt(16) == 3.0, "a token all of whose coordinates are at the bound"
    assert (found["rho"], found["sigma"]) == (1.5, 1e-5)
    assert absolute_radii({**scala, "ascent": "literal"}, 3.0, 16)["rho"] == 2.0 * 0.75**2
    assert absolute_radii({**scala, "radius_unit": "absolute"}, 3.0, 16)["omega"] == 1.0
    freelb = {"adv_norm": "l2", "adv_lr": 0.1, "adv_init": 0.2, "adv_max_norm": 0.0, "adv_scale": 10.0}
    for unit, length in (("absolute", 1.0), ("embedding", 3.0)):
        found = absolute_radii({**freelb, "radius_unit": unit}, 3.0, 16)
        expected = {"adv_lr": 1.0 * length, "adv_init": 2.0 * length, "adv_max_norm": 0.0}
        assert found == {"adv_norm": "l2", **{name: pytest.approx(value) for name, value in expected.items()}}


def test_resumed_run_keeps_the_unit_of_the_pretrained_encoder(tiny_bert, tmp_path, monkeypatch):
    """Its word embeddings have moved by then: by more than the norms' spread at this rate."""
    monkeypatch.chdir(tmp_path)
    rows = write_rows(tmp_path / "rows.csv", 48)
    options = {"method": "scala-effective", "delay": 0.0, "radius_unit": "embedding", "omega": 0.1, "rho": 0.1}
    options |= {"lr": 0.3, "max_weight_norm": "inf", "save_every": 0}
    assert main(train_flags(tiny_bert, rows, out="whole", **options)) == 0
    with interrupted_after(5):
        assert main(train_flags(tiny_bert, rows, **options)) == 130
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    whole, out = (strict_json(Path(folder, "run.json").read_text()) for folder in ("whole", "out"))
    tables = [load_file(Path(folder) / "model.safetensors") for folder in (tiny_bert, "out/checkpoint")]
    before, after = (float(table["bert.embeddings.word_embeddings.weight"].norm(dim=1).median()) for table in tables)
    assert whole["embedding_norm"] == out["embedding_norm"] == pytest.approx(before, rel=1e-6)
    assert abs(after - before) > 0.01 * before
    files = [Path(folder, "checkpoint/model.safetensors").read_bytes() for folder in ("whole", "out")]
    assert files[0] == files[1]
