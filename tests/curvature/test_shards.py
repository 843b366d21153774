from __future__ import annotations

import pytest
import torch

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.shards import cut_batch
from tests.curvature.dense import tiny_batches, tiny_classifier


def batch_of(lengths, width=64):
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.arange(1, len(lengths) + 1)[:, None] * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(lengths))}


def test_shards_hold_every_token_once_and_no_column_of_padding():
    batch = batch_of([3, 50, 4, 48, 3, 9, 2])
    shards = cut_batch(batch)
    assert len(shards) > 1
    assert sorted(torch.cat([shard["labels"] for shard in shards]).tolist()) == list(range(7))
    for shard in shards:
        assert shard["input_ids"].shape == shard["attention_mask"].shape
        assert shard["attention_mask"].any(0).all()
        rows = batch["attention_mask"][shard["labels"]].sum(1)
        assert shard["attention_mask"].sum(1).tolist() == rows.tolist()
        assert (shard["input_ids"].amax(1) == shard["labels"] + 1).all()


def test_shards_have_no_more_tokens_than_asked():
    batch = batch_of([10] * 13 + [60])
    assert sorted(shard["input_ids"].shape for shard in cut_batch(batch)) == [(1, 60), (13, 10)]
    shards = cut_batch(batch, shard_tokens=50)
    assert [tuple(shard["input_ids"].shape) for shard in shards] == [(1, 60), (5, 10), (4, 10), (4, 10)]
    assert sorted(torch.cat([shard["labels"] for shard in shards]).tolist()) == list(range(14))


@pytest.mark.parametrize("change", ["no mask", "padded at the start", "an entry of another length"])
def test_what_is_not_rows_padded_at_their_end_stays_whole(change):
    batch = batch_of([3, 50, 4])
    if change == "no mask":
        del batch["attention_mask"]
    elif change == "padded at the start":
        batch["attention_mask"] = batch["attention_mask"].flip(1)
    else:
        batch["weight"] = torch.ones(())
    (only,) = cut_batch(batch)
    assert all(only[name] is value for name, value in batch.items())


def test_a_model_whose_loss_sees_the_padding_is_multiplied_as_given():
    """Mean over all columns, masked or not: cutting would change it, so the product must be that of whole batches."""

    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(20, 3).double()
            self.head = torch.nn.Linear(3, 2).double()

        def forward(self, input_ids, attention_mask):
            return type("Output", (), {"logits": self.head(self.table(input_ids).mean(1).tanh())})()

    torch.manual_seed(0)
    model, batch = Mean(), batch_of([3, 60, 4, 5, 2, 3])
    batch["labels"] %= 2
    assert len(cut_batch(batch)) > 1
    logits = model(batch["input_ids"], batch["attention_mask"]).logits
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"]).item()
    assert HessianOperator(model, [batch]).loss() == pytest.approx(expected, rel=1e-12)


def test_padding_changes_no_product(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches((9,))
    wide = [{n: torch.nn.functional.pad(v, (0, 4)) if v.ndim == 2 else v for n, v in b.items()} for b in batches]
    plain, padded = HessianOperator(model, batches), HessianOperator(model, wide)
    vector = torch.randn(plain.space.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = plain @ vector
    assert float((padded @ vector - expected).norm() / expected.norm()) < 1e-12
