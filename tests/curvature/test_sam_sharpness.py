"""SAM's sharpness on a loss of known Hessian, and on a classifier whose weights and batches must not matter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.sam_sharpness import sam_sharpness
from scala_lab.errors import UserError
from tests.curvature.dense import tiny_batches, tiny_classifier

RADII = (0.01, 0.3)


class LeastSquares(torch.nn.Module):
    """Squared error of a linear function: L(w) = ||A w - b||^2 / N, whose Hessian is 2 A'A / N."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.features = torch.randn(12, 4, generator=rng, dtype=torch.float64)
        self.labels = torch.randn(12, generator=rng, dtype=torch.float64)
        self.weight = torch.nn.Parameter(torch.randn(4, generator=rng, dtype=torch.float64))
        self.frozen = torch.nn.Parameter(torch.ones(4, dtype=torch.float64), requires_grad=False)

    def forward(self, features):
        return SimpleNamespace(logits=(features @ (self.weight * self.frozen))[:, None])

    @property
    def batches(self):
        return [
            {"features": self.features[:5], "labels": self.labels[:5]},
            {"features": self.features[5:], "labels": self.labels[5:]},
        ]

    def derivatives(self):
        """Gradient and Hessian at the weights."""
        features, labels, weight = (x.detach().numpy() for x in (self.features, self.labels, self.weight))
        return 2 * features.T @ (features @ weight - labels) / 12, 2 * features.T @ features / 12


def largest_rise(gradient, hessian, radius):
    """max g'e + e'He/2 over ||e|| = rho: (mu - H) e = g with mu above all eigenvalues, so that ||e|| falls with mu."""
    values, vectors = np.linalg.eigh(hessian)
    along = vectors.T @ gradient
    bound = values[-1] + np.linalg.norm(gradient) / radius
    mu = brentq(lambda mu: np.linalg.norm(along / (mu - values)) - radius, values[-1] + 1e-9, bound, xtol=1e-14)
    step = along / (mu - values)
    return along @ step + step @ (values * step) / 2


@pytest.mark.parametrize("adaptive", [False, True])
def test_one_step_on_a_quadratic_is_the_closed_form(adaptive):
    model = LeastSquares()
    gradient, hessian = model.derivatives()
    scale = np.abs(model.weight.detach().numpy()) if adaptive else np.ones(4)
    length = np.linalg.norm(scale * gradient)
    direction = scale**2 * gradient / length
    expected = [[rho * length + rho**2 / 2 * direction @ hessian @ direction] for rho in RADII]
    found = sam_sharpness(model, model.batches, RADII, adaptive=adaptive)
    assert found == pytest.approx(np.array(expected), rel=1e-10)


@pytest.mark.parametrize("adaptive", [False, True])
def test_steps_on_a_quadratic_climb_to_the_maximum_over_the_ball(adaptive):
    model = LeastSquares()
    gradient, hessian = model.derivatives()
    scale = np.abs(model.weight.detach().numpy()) if adaptive else np.ones(4)  # e = T d turns the ball into a plain one
    expected = [largest_rise(scale * gradient, scale[:, None] * hessian * scale, rho) for rho in RADII]
    found = sam_sharpness(model, model.batches, RADII, 100, adaptive=adaptive)
    assert (np.diff(found) >= -1e-12).all()
    assert found[:, -1] == pytest.approx(np.array(expected), rel=1e-9)


def test_a_flat_loss_does_not_rise():
    model = LeastSquares()
    with torch.no_grad():
        model.weight.zero_()
    batches = [{**batch, "labels": torch.zeros_like(batch["labels"])} for batch in model.batches]
    assert (sam_sharpness(model, batches, RADII, 2) == 0).all()
    assert (sam_sharpness(model, model.batches, RADII, adaptive=True) == 0).all(), "T = |w| does not move a zero"


@pytest.mark.parametrize("adaptive", [False, True])
def test_first_order_is_the_gradient_of_the_operator(tmp_path, adaptive):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    op = HessianOperator(model, batches)
    gradient = op.space.full(op.gradient())
    weights = torch.cat([weight.detach().flatten() for weight in op.space.parameters.values()])
    slope = float((weights.abs() * gradient if adaptive else gradient).norm())
    rho = 1e-6
    assert sam_sharpness(model, batches, [rho], adaptive=adaptive)[0, 0] / rho == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_cut_into_batches_does_not_matter(tmp_path, adaptive):
    model = tiny_classifier(tmp_path)
    whole, parts = (
        sam_sharpness(model, tiny_batches(sizes), RADII, 3, adaptive=adaptive) for sizes in ((8,), (4, 3, 1))
    )
    assert whole == pytest.approx(parts, rel=1e-9)


def test_weights_mode_and_gradients_are_the_same_bits_afterwards(tmp_path):
    model = tiny_classifier(tmp_path).float().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sam_sharpness(model, tiny_batches(), RADII, 2, adaptive=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())


def test_rows_without_labels_are_refused(tmp_path):
    with pytest.raises(UserError, match="labels in every batch"):
        sam_sharpness(tiny_classifier(tmp_path), [{"input_ids": torch.ones(2, 3, dtype=torch.long)}], RADII)
