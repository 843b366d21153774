from __future__ import annotations

import pytest
import torch

from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.pyhessian_check import pyhessian_top
from scala_lab.errors import UserError
from tests.curvature.dense import tiny_batches, tiny_classifier


@pytest.mark.parametrize("sizes", [(8,), (4, 3, 1)])
@pytest.mark.parametrize("labels", [3, 1])
def test_agrees_on_the_top_where_it_converges(tmp_path, sizes, labels):
    model, batches = tiny_classifier(tmp_path, labels=labels), tiny_batches(sizes, labels)
    op = HessianOperator(model, batches)
    ours = top_eigenpairs(op, tol=1e-6)
    theirs = pyhessian_top(op, batches, tol=1e-10, max_iterations=3000)
    assert theirs.residuals[0] <= 1e-3
    assert theirs.eigenvalues[0] == pytest.approx(ours.eigenvalues[0], rel=1e-5)
    assert abs(float(theirs.eigenvectors[0] @ ours.eigenvectors[0])) == pytest.approx(1, abs=1e-5)
    assert theirs.hvps > ours.hvps


def test_one_batch_and_uneven_batches_are_the_same_question(tmp_path):
    model = tiny_classifier(tmp_path)
    whole, parts = (
        pyhessian_top(HessianOperator(model, batches), batches, k=2, max_iterations=30, tol=1e-3)
        for batches in (tiny_batches((8,)), tiny_batches((5, 2, 1)))
    )
    assert whole.eigenvalues == pytest.approx(parts.eigenvalues, rel=1e-6)
    assert whole.hvps == parts.hvps


def test_its_own_word_is_not_taken_for_convergence(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    result = pyhessian_top(HessianOperator(model, batches), batches, tol=1e-2, max_iterations=100)
    assert result.hvps < 100  # PyHessian was satisfied
    vector = result.eigenvectors[0]
    true = float((HessianOperator(model, batches) @ vector - result.eigenvalues[0] * vector).norm())
    assert result.residuals[0] == pytest.approx(true / abs(result.eigenvalues[0]))
    assert result.residuals[0] > 1e-2
    assert not result.converged


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_unused_parameters_do_not_crash_it(tmp_path, dtype):
    model, batches = tiny_classifier(tmp_path).to(dtype), tiny_batches((8,))
    plain = pyhessian_top(HessianOperator(model, batches), batches, tol=1e-5, max_iterations=150)
    model.unused = torch.nn.Linear(3, 3).to(dtype)
    result = pyhessian_top(HessianOperator(model, batches), batches, tol=1e-5, max_iterations=150)
    assert result.eigenvectors.shape[1] == plain.eigenvectors.shape[1] + 12
    assert result.eigenvalues == pytest.approx(plain.eigenvalues, rel=1e-2)
    assert float(result.eigenvectors[0, -12:].abs().max()) == 0
    assert "2 parameters" in result.note


def test_model_is_left_as_it_was_even_when_stopped(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    model.train()
    model.classifier.bias.requires_grad_(False)
    model.classifier.weight.grad = torch.ones_like(model.classifier.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.random.get_rng_state()
    products = []

    def stop_at_five():
        products.append(1)
        if len(products) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pyhessian_top(HessianOperator(model, batches, on_product=stop_at_five), batches)
    assert model.training
    assert not model.classifier.bias.requires_grad
    assert all(value.requires_grad for name, value in model.named_parameters() if name != "classifier.bias")
    assert torch.equal(model.classifier.weight.grad, torch.ones_like(model.classifier.weight))
    assert model.bert.embeddings.word_embeddings.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.random.get_rng_state(), rng)


def test_an_operator_over_a_block_is_refused(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    op = HessianOperator(model, batches, parameters=["classifier.*"])
    with pytest.raises(UserError, match="all trainable parameters"):
        pyhessian_top(op, batches)
