"""SAM's sharpness on a loss of known Hessian, and on a classifier whose weights and batches must not matter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch.nn import functional
from transformers import GPT2Config, GPT2ForSequenceClassification

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.sam_sharpness import sam_sharpness
from scala_lab.errors import UserError
from tests.curvature.dense import tiny_batches, tiny_classifier

RADII = pytest.mark.parametrize("rho", [0.01, 0.3])
KINDS = pytest.mark.parametrize("adaptive", [False, True])


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


@RADII
@KINDS
def test_one_step_on_a_quadratic_is_the_closed_form(rho, adaptive):
    model = LeastSquares()
    gradient, hessian = model.derivatives()
    scale = np.abs(model.weight.detach().numpy()) if adaptive else np.ones(4)
    length = np.linalg.norm(scale * gradient)
    direction = scale**2 * gradient / length
    expected = rho * length + rho**2 / 2 * direction @ hessian @ direction
    assert sam_sharpness(model, model.batches, rho, adaptive=adaptive) == pytest.approx([expected], rel=1e-10)


@RADII
@KINDS
def test_steps_on_a_quadratic_climb_to_the_maximum_over_the_ball(rho, adaptive):
    model = LeastSquares()
    gradient, hessian = model.derivatives()
    scale = np.abs(model.weight.detach().numpy()) if adaptive else np.ones(4)  # e = T d turns the ball into a plain one
    expected = largest_rise(scale * gradient, scale[:, None] * hessian * scale, rho)
    found = sam_sharpness(model, model.batches, rho, 100, adaptive=adaptive)
    assert (np.diff(found) >= -1e-12).all()
    assert found[-1] == pytest.approx(expected, rel=1e-9)


def test_a_flat_loss_does_not_rise():
    model = LeastSquares()
    with torch.no_grad():
        model.weight.zero_()
    batches = [{**batch, "labels": torch.zeros_like(batch["labels"])} for batch in model.batches]
    assert (sam_sharpness(model, batches, 0.3, 2) == 0).all()
    assert (sam_sharpness(model, model.batches, 0.3, adaptive=True) == 0).all(), "T = |w| does not move a zero"


@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
@KINDS
def test_steps_are_those_of_weights_written_in_place(tmp_path, architecture, adaptive):
    model, (batch,) = tiny_classifier(tmp_path, architecture).eval(), tiny_batches((8,))
    inputs, weights = {key: batch[key] for key in ("input_ids", "attention_mask")}, list(model.parameters())
    centre, losses = [weight.detach().clone() for weight in weights], []
    for _ in range(4):
        loss = functional.cross_entropy(model(**inputs).logits, batch["labels"])
        losses.append(loss.item())
        grads = torch.autograd.grad(loss, weights, allow_unused=True)
        scales = [weight.abs() if adaptive else torch.ones_like(weight) for weight in centre]
        uphill = [torch.zeros_like(s) if g is None else s * g for s, g in zip(scales, grads, strict=True)]
        norm = sum((part**2).sum() for part in uphill).sqrt()
        with torch.no_grad():
            for weight, start, scale, part in zip(weights, centre, scales, uphill, strict=True):
                weight.copy_(start + 0.1 * scale * part / norm)
    with torch.no_grad():
        for weight, start in zip(weights, centre, strict=True):
            weight.copy_(start)
    found = sam_sharpness(model, [batch], 0.1, 3, adaptive=adaptive)
    assert found == pytest.approx(np.array(losses[1:]) - losses[0], rel=1e-7)


@KINDS
def test_first_order_is_the_gradient_of_the_operator(tmp_path, adaptive):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    op = HessianOperator(model, batches)
    gradient = op.space.full(op.gradient())
    weights = torch.cat([weight.detach().flatten() for weight in op.space.parameters.values()])
    slope = float((weights.abs() * gradient if adaptive else gradient).norm())
    rho = 1e-6
    assert sam_sharpness(model, batches, rho, adaptive=adaptive)[0] / rho == pytest.approx(slope, rel=1e-4)


@KINDS
def test_the_cut_into_batches_does_not_matter(tmp_path, adaptive):
    model = tiny_classifier(tmp_path)
    whole, parts = (sam_sharpness(model, tiny_batches(sizes), 0.3, 3, adaptive=adaptive) for sizes in ((8,), (4, 3, 1)))
    assert whole == pytest.approx(parts, rel=1e-9)


def test_a_decoder_without_a_pad_token_rises_as_with_one():
    sizes = {"vocab_size": 20, "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 8, "num_labels": 3}
    model, found = GPT2ForSequenceClassification(GPT2Config(**sizes)).double(), {}
    for pad_token in (0, None):
        model.config.pad_token_id = pad_token
        found[pad_token] = sam_sharpness(model, tiny_batches(), 0.3, 2)
    assert found[None] == pytest.approx(found[0], rel=1e-9)


def test_weights_mode_and_gradients_are_the_same_bits_afterwards(tmp_path):
    model = tiny_classifier(tmp_path).float().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sam_sharpness(model, tiny_batches(), 0.3, 2, adaptive=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())


def test_rows_without_labels_are_refused(tmp_path):
    with pytest.raises(UserError, match="labels in every batch"):
        sam_sharpness(tiny_classifier(tmp_path), [{"input_ids": torch.ones(2, 3, dtype=torch.long)}], 0.3)
