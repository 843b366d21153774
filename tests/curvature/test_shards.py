"""Shards without needless padding, lanes that run them at once, and the bytes of a graph."""

from __future__ import annotations

import threading

import pytest
import torch

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.operator import cut_batch, graph_bytes, lane_count, lane_map
from tests.curvature.dense import tiny_batches, tiny_classifier
from tests.processes import PATIENCE


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


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_lanes_run_at_once_with_their_own_compute_threads(two_threads):
    meeting = threading.Barrier(2, timeout=PATIENCE)

    def meet(_):
        meeting.wait()  # breaks unless the other lane is here at the same time
        return torch.get_num_threads()

    lanes = lane_count(5, torch.device("cpu"))
    assert list(lane_map(lanes)(meet, ["a", "b"])) == [1, 1]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_products_and_gradients_are_those_of_one_lane(tmp_path, two_threads, budget):
    model, batches = tiny_classifier(tmp_path), tiny_batches((3, 5, 2, 6))
    several = HessianOperator(model, batches, budget=budget)
    torch.set_num_threads(1)
    alone = HessianOperator(model, batches, budget=budget)
    assert (several._lanes, alone._lanes) == (2, 1)
    vector = torch.randn(alone.space.touched_size, generator=torch.Generator().manual_seed(0), dtype=alone.dtype)
    for result, expected in (
        (several.multiply(vector), alone.multiply(vector)),
        (several.gradient(), alone.gradient()),
    ):
        assert float((result - expected).norm() / expected.norm()) < 1e-10
    assert torch.equal(several.multiply(vector), several.multiply(vector))


def second_derivative_graph(rows):
    """Gradient of sum(tanh(x @ w)^2) by w, x with that many rows of 5 numbers in float32."""
    weight = torch.ones(5, 7, requires_grad=True)
    loss = (torch.ones(rows, 5) @ weight).tanh().square().sum()
    return torch.autograd.grad(loss, [weight], create_graph=True)


def test_counts_each_storage_once_and_no_leaf():
    x = torch.ones(6, requires_grad=True)
    y = x.exp()
    assert graph_bytes([y]) == 24  # exp saves its result
    assert graph_bytes([y * y, y + 1]) == 24
    assert graph_bytes([x * x]) == 0
    assert graph_bytes([x]) == 0


def test_a_gradient_graph_grows_with_the_rows_and_not_with_the_weights():
    small, large = (graph_bytes(second_derivative_graph(rows)) for rows in (10, 20))
    # by hand: x, tanh(x w), its square's gradient and the gradient that tanh hands on, and the factor 2 of the square
    assert large > small
    assert large - small == 2 * (small - graph_bytes(second_derivative_graph(5)))


def test_what_a_function_in_python_saved():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 2)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    assert graph_bytes([Double.apply(torch.ones(3, requires_grad=True))]) == 12
