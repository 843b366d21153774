"""Divergences against scipy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from scala_lab.divergence import output_divergence, symmetric_kl


def logits(scale: float, shape=(64, 5), dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return tuple((torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype) for _ in range(2))


# softmax in float32 rounds at 1e-7, and the divergence is about scale^2
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_equals_scipy_in_both_directions(scale, dtype, tolerance):
    a, b = logits(scale, dtype=dtype)
    p, q = (scipy.special.softmax(value.double().numpy(), axis=-1) for value in (a, b))
    expected = scipy.stats.entropy(p, q, axis=-1) + scipy.stats.entropy(q, p, axis=-1)
    result = symmetric_kl(a, b)
    assert result.dtype == dtype
    assert result.shape == (64,)
    np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance * scale**2)


def test_gradient_equals_finite_differences():
    a, b = (value[:4].clone().requires_grad_() for value in logits(2.0))
    assert torch.autograd.gradcheck(symmetric_kl, (a, b), eps=1e-6, atol=1e-7)


def test_gradient_vanishes_where_both_agree():
    a, _ = logits(3.0)
    b = a.clone().requires_grad_()
    assert torch.equal(symmetric_kl(a, b), torch.zeros(64, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(symmetric_kl(a, b).sum(), b)
    assert gradient.abs().max() < 1e-15


def test_extreme_logits_stay_finite():
    # p = (1, 0), q = (0, 1) up to exp(-5000): each direction is 5000
    a, b = torch.tensor([[0.0, -5000.0]]), torch.tensor([[-5000.0, 0.0]], requires_grad=True)
    value = symmetric_kl(a, b)
    assert value.item() == pytest.approx(10000.0)
    (gradient,) = torch.autograd.grad(value.sum(), b)
    assert torch.isfinite(gradient).all()


def test_class_that_both_rule_out_adds_nothing():
    inf = float("inf")
    with_masked = symmetric_kl(*(torch.tensor([row]).double() for row in ([1.0, 2.0, -inf], [0.5, -1.0, -inf])))
    without = symmetric_kl(*(torch.tensor([row]).double() for row in ([1.0, 2.0], [0.5, -1.0])))
    assert with_masked.item() == pytest.approx(without.item(), rel=1e-12)
    assert symmetric_kl(torch.tensor([[1.0, -inf]]), torch.tensor([[1.0, 0.0]])).item() == inf


def test_half_precision_is_computed_in_float32():
    a, b = (value.bfloat16() for value in logits(1.0))
    assert symmetric_kl(a, b).dtype == torch.float32
    torch.testing.assert_close(symmetric_kl(a, b), symmetric_kl(a.float(), b.float()))


def test_divergence_of_regression_outputs_is_their_squared_difference_per_sample():
    a, b = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([[0.0], [5.0], [-1.0]])
    assert output_divergence(a, b, regression=True).tolist() == [1.0, 9.0, 0.0]
