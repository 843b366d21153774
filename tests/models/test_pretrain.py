"""The embedded encoder: reproducible bytes, a tokenizer that knows the grammar, and shipped weights as recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scala_lab.commands.pretrain import Pretrain, run
from scala_lab.data.synthetic.generation import EMBEDDED, generate, lines
from scala_lab.errors import UserError
from scala_lab.models.loading import EMBEDDED as FOLDER
from scala_lab.models.pretrain import FILES, SPECIAL, Batch, Settings, corrupt, heldout, pretrain, read_encoder

SHORT = Settings(steps=8, lines=1024, threads=1, layers=1, hidden=32, heads=2, intermediate=64)


def test_two_runs_write_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pretrain(tmp_path / name, Settings(**{**vars(SHORT), "seed": seed}))
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "c/model.safetensors").read_bytes()
    assert {file.name for file in (tmp_path / "a").iterdir()} == FILES


def test_training_lowers_the_heldout_loss_and_reading_back_restores_it(tmp_path: Path) -> None:
    from math import log

    record = pretrain(tmp_path / "encoder", Settings(**{**vars(SHORT), "steps": 60, "lines": 4096}))
    model, tokenizer, read = read_encoder(tmp_path / "encoder")
    assert read == record
    assert record["heldout_loss"] < log(len(tokenizer)) - 1, "well below the loss of a uniform guess"
    assert heldout(model, tokenizer, record["mask_rate"])["heldout_loss"] == pytest.approx(
        record["heldout_loss"], rel=1e-5
    )


def test_masking_chooses_the_rate_and_never_special_tokens() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (200, 40))
    batch = Batch(ids, np.zeros_like(ids), np.ones_like(ids), np.zeros(200, dtype=int))
    corrupted, chosen = corrupt(batch, 50, 0.25, rng)
    words = ids >= len(SPECIAL)
    assert not (chosen & ~words).any()
    assert np.array_equal(corrupted[~chosen], ids[~chosen])
    assert chosen[words].mean() == pytest.approx(0.25, abs=0.02)
    masked = corrupted[chosen] == SPECIAL.index("[MASK]")
    assert masked.mean() == pytest.approx(0.8, abs=0.03)


def test_shipped_tokenizer_knows_every_word_of_the_tasks_and_spells_strange_ones() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    known = set(tokenizer.get_vocab())
    texts = [
        text for name in EMBEDDED for rows in generate(name).values() for text in (*rows.first, *(rows.second or ()))
    ]
    assert {word for text in [*texts, *(line.text for line in lines(5000, 7))] for word in text.split()} <= known
    assert len(known) < 1000
    assert tokenizer.tokenize("Zebra") == ["z", "##e", "##b", "##r", "##a"]
    pair = tokenizer("the dog slept .", "a cat ran .")
    assert pair["token_type_ids"] == [0] * 6 + [1] * 5
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[:6] == ["[CLS]", "the", "dog", "slept", ".", "[SEP]"]


def test_shipped_weights_have_the_recorded_heldout_loss_and_are_small() -> None:
    model, tokenizer, record = read_encoder(FOLDER)
    measured = heldout(model, tokenizer, record["mask_rate"])
    assert measured["heldout_loss"] == pytest.approx(record["heldout_loss"], rel=0.01)
    assert measured["heldout_pair_accuracy"] > 0.65, "always saying yes gets 0.56"
    assert sum((FOLDER / file).stat().st_size for file in FILES) < 4_000_000
    assert run(Pretrain(check=True)) == 0


def test_shipped_encoder_loads_as_a_classifier_with_nothing_left_over() -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    model, info = AutoModelForSequenceClassification.from_pretrained(FOLDER, num_labels=3, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert all(name.startswith(("classifier", "bert.pooler")) for name in info["missing_keys"])
    kept, _, _ = read_encoder(FOLDER)
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, kept.bert.embeddings.word_embeddings.weight)


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(UserError, match="something other than an encoder"):
        run(Pretrain(out=tmp_path / "mine"))
    with pytest.raises(UserError, match="--steps must be at least 1"):
        run(Pretrain(out=tmp_path / "new", steps=0))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "notes.txt"]
