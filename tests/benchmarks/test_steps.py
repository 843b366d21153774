"""The peers of benchmarks/steps.py do what ours do where both must agree, so their times are of the same work."""

from __future__ import annotations

import pytest
import torch

from scala_lab.divergence import output_divergence
from tests.methods.small import flat_gradient, make_batch, make_encoder, make_step, step_context

KINDS = pytest.mark.parametrize("classes", [0, 2, 3])


def gradient_and_loss(step, folder, classes):
    encoder, batch = make_encoder(folder, classes), make_batch(classes=classes)
    counted = step(encoder, batch, step_context())
    return flat_gradient(encoder), float(counted[0])


def distance(left, right):
    return float((left - right).norm() / right.norm())


@KINDS
@pytest.mark.usefixtures("peers")
def test_published_freelb_takes_our_steps(tiny_bert, classes):
    from peers.adversaries import TorchblocksFreeLBStep

    ours, _ = gradient_and_loss(make_step("freelb", adv_init=0.0, adv_lr=0.1, adv_max_norm=0.3), tiny_bert, classes)
    theirs, _ = gradient_and_loss(TorchblocksFreeLBStep(adv_lr=0.1, adv_init_mag=0.0), tiny_bert, classes)
    assert distance(theirs, 3 * ours) < 1e-10  # it sums over the 3 passes, ours is their mean


@KINDS
@pytest.mark.usefixtures("peers")
def test_smart_has_our_task_loss_and_adds_to_its_gradient(tiny_bert, classes):
    from peers.adversaries import SmartStep

    plain, loss = gradient_and_loss(make_step("lamb"), tiny_bert, classes)
    without, its_loss = gradient_and_loss(SmartStep(weight=0.0), tiny_bert, classes)
    smart, _ = gradient_and_loss(SmartStep(), tiny_bert, classes)
    assert its_loss == pytest.approx(loss, rel=1e-12)
    assert distance(without, plain) < 1e-10
    assert distance(smart, plain) > 1e-6


@pytest.mark.usefixtures("peers")
def test_smart_measures_divergence_as_we_do():
    from smart_pytorch import sym_kl_loss

    left, right = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = output_divergence(left, right, regression=False).sum()
    assert float(sym_kl_loss(left, right)) == pytest.approx(float(ours), rel=1e-6)


def test_every_fused_goal_has_its_limit_below_it():
    from steps import FUSED_GOALS, FUSED_LIMITS

    assert all(FUSED_LIMITS[outputs] < goal for outputs, goal in FUSED_GOALS.items())
