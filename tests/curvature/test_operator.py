"""Products with the Hessian: those of the dense matrix, however rows are cut, padded and dealt."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils.rnn import pad_sequence

from scala_lab.config import MachineSpec
from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.operator import SOLVER_VECTORS
from scala_lab.errors import UserError
from scala_lab.models import architectures
from scala_lab.training.distributed import run_workers
from tests.curvature import worker
from tests.curvature.conftest import make_case
from tests.curvature.dense import dense_hessian, tiny_batches, tiny_classifier


def random_vectors(size, count=3, dtype=torch.float64):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def relative(left, right):
    return float((left - right).norm() / right.norm())


def test_products_are_those_of_the_dense_matrix(every):
    assert every.op.shape == tuple(every.matrix.shape)
    assert every.op.space.touched_size < every.op.space.size
    for vector in random_vectors(len(every.matrix)):
        assert relative(every.op @ vector, every.matrix @ vector) < 1e-8


def test_products_of_a_squared_error(tmp_path):
    scores = make_case(tmp_path, "bert", labels=1)
    for vector in random_vectors(len(scores.matrix)):
        assert relative(scores.op @ vector, scores.matrix @ vector) < 1e-8


def solver_room(op):
    """Bytes of a budget that are set aside for a solver's vectors."""
    return SOLVER_VECTORS * op.space.touched_size * op.dtype.itemsize


def retained(op):
    """How many samples have their graph retained."""
    return sum(len(shard.batch["labels"]) for shard in op._shards if shard.graph is not None)


UNEVEN = (5, 3, 1, 4, 2, 1, 6)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}


def whole_batch(sizes):
    parts = tiny_batches(sizes)
    return [{name: torch.cat([part[name] for part in parts]) for name in parts[0]}]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_cutting_into_batches_and_streaming_change_nothing(tmp_path, dtype):
    model = tiny_classifier(tmp_path).to(dtype)
    reference = HessianOperator(model, whole_batch(UNEVEN))
    everything, some, nothing = (
        HessianOperator(model, tiny_batches(UNEVEN), budget=budget)
        for budget in (2**30, solver_room(reference) + 6_000 * dtype.itemsize, 0)
    )
    assert [retained(everything), retained(nothing)] == [sum(UNEVEN), 0]
    assert 0 < retained(some) < sum(UNEVEN)
    for vector in random_vectors(reference.space.size, dtype=dtype):
        for op in (everything, some, nothing):
            assert relative(op @ vector, reference @ vector) < TOLERANCES[dtype]


def test_two_workers_agree_with_one(tmp_path):
    model = tiny_classifier(tmp_path / "model")
    vector = random_vectors(sum(parameter.numel() for parameter in model.parameters()))[0]
    save_file({"vector": vector}, tmp_path / "vector.safetensors")
    run_workers(partial(worker.main, str(tmp_path), UNEVEN), MachineSpec(workers=2, threads=1, device="cpu"))
    for dtype, tolerance in TOLERANCES.items():
        op = HessianOperator(model.to(dtype), whole_batch(UNEVEN))
        result = load_file(tmp_path / f"{dtype}.safetensors")
        assert result["product"].dtype == dtype
        assert relative(result["product"], op @ vector.to(dtype)) < tolerance
        assert relative(result["gradient"], op.space.full(op.gradient())) < tolerance
        assert relative(result["eigenvalues"], torch.as_tensor(top_eigenpairs(op, 2).eigenvalues)) < tolerance
        facts = json.loads((tmp_path / f"{dtype}.json").read_text())
        assert facts == {"samples": sum(UNEVEN), "loss": pytest.approx(op.loss(), rel=tolerance)}


def test_block_of_parameters_is_the_block_of_the_matrix(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    matrix = dense_hessian(tmp_path, batches)
    places, start = {}, 0
    for name, parameter in model.named_parameters():
        places[name] = torch.arange(start, start + parameter.numel())
        start += parameter.numel()
    for patterns in (["*.layer.0.*"], ["*embeddings*"], ["classifier.*", "*pooler*"]):
        op = HessianOperator(model, batches, parameters=patterns)
        chosen = torch.cat([places[name] for name in op.space.parameters])
        vector = random_vectors(len(chosen))[0]
        assert relative(op @ vector, matrix[chosen][:, chosen] @ vector) < 1e-8


def test_frozen_and_unused_parameters(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    model.spare = torch.nn.Linear(2, 2).double()
    op = HessianOperator(model, batches)
    assert op.space.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    product = op @ random_vectors(op.space.size)[0]
    assert product[-6:].abs().max() == 0
    assert product[:-6].norm() > 0


def test_the_model_is_left_as_it_was_and_dropout_is_off(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    op = HessianOperator(model, batches)
    vector = random_vectors(op.space.size)[0]
    assert torch.equal(op @ vector, op @ vector)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_is_not_deterministic_is_refused(tmp_path):
    model = tiny_classifier(tmp_path)
    model.classifier.register_forward_hook(lambda module, inputs, output: output * torch.rand(1))
    with pytest.raises(UserError, match="two different answers"):
        HessianOperator(model, tiny_batches())


def test_faults_are_named(tmp_path):
    model = tiny_classifier(tmp_path)
    with pytest.raises(UserError, match="at least one sample"):
        HessianOperator(model, [])
    with pytest.raises(UserError, match="needs labels"):
        HessianOperator(model, [{"input_ids": torch.ones(1, 3, dtype=torch.long)}])
    with pytest.raises(UserError, match="no trainable parameter matches"):
        HessianOperator(model, tiny_batches(), parameters=["nothing*"])
    with pytest.raises(ValueError, match="vectors of length"):
        HessianOperator(model, tiny_batches()) @ torch.zeros(3)


def test_a_plain_module_without_word_table_works():
    """Any module that returns logits: here logistic regression, whose Hessian is known in closed form."""

    class Logistic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2, bias=False).double()

        def forward(self, features):
            return type("Output", (), {"logits": self.linear(features)})()

    model = Logistic()
    features = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    op = HessianOperator(model, [{"features": features, "labels": torch.tensor([0, 1, 0, 1, 1, 0])}])
    p = model.linear(features).softmax(-1)
    expected = sum(
        torch.kron(torch.diag(q) - torch.outer(q, q), torch.outer(x, x)) for q, x in zip(p, features, strict=True)
    )
    matrix = torch.stack([op @ row for row in torch.eye(6, dtype=torch.float64)])
    assert torch.allclose(matrix, expected.detach() / 6, atol=1e-12)


def test_retained_graphs_do_not_grow_with_the_number_of_samples(tmp_path):
    model = tiny_classifier(tmp_path)
    budget = solver_room(HessianOperator(model, tiny_batches((4,) * 32), budget=0)) + 60_000
    few = HessianOperator(model, tiny_batches((4,) * 4), budget=budget)
    many = HessianOperator(model, tiny_batches((4,) * 32), budget=budget)
    assert 0 < retained(few) == retained(many) < 16


def test_at_most_about_a_thousand_samples_are_retained_whatever_the_budget(tmp_path):
    model = tiny_classifier(tmp_path)
    op = HessianOperator(model, tiny_batches((16,) * 200), budget=2**40)
    streamed = HessianOperator(model, tiny_batches((16,) * 200), budget=0)
    assert 512 < retained(op) <= 1024 + 16
    (vector,) = random_vectors(op.space.size, count=1, dtype=op.dtype)
    assert relative(op @ vector, streamed @ vector) < TOLERANCES[op.dtype]


def decoder_batch(rows, token=0, side="right"):
    """Rows by number, padded with a token on a side."""
    lengths = (3, 7, 5, 4)
    ids = [torch.randint(24, 64, (lengths[row],), generator=torch.Generator().manual_seed(row)) for row in rows]
    padded = pad_sequence(ids, batch_first=True, padding_value=token, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True, padding_side=side)
    return {"input_ids": padded, "attention_mask": mask, "labels": torch.tensor(rows) % 2}


@pytest.mark.parametrize("pad_token", [None, 5])
@pytest.mark.parametrize(
    ("model_type", "side"),
    # rotations know no absolute positions, so that the side of the padding changes nothing
    [("gpt2", "right"), ("llama", "right"), ("llama", "left"), ("qwen2", "right"), ("opt", "right")],
)
def test_padded_rows_have_the_products_of_rows_alone(model_type, side, pad_token):
    """Also where the config has no pad token, and the stock model would refuse the batch."""
    model = architectures.tiny_classifier(model_type).double()
    model.config.pad_token_id = pad_token
    alone = HessianOperator(model, [decoder_batch([row]) for row in range(4)])
    together = HessianOperator(model, [decoder_batch(range(4), pad_token or 0, side)])
    vector = random_vectors(alone.space.size)[0]
    # Llama and Qwen compute their norms in float32
    assert relative(together @ vector, alone @ vector) < (1e-4 if model_type in ("llama", "qwen2") else 1e-9)
    assert model.config.pad_token_id == pad_token
