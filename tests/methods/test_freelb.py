"""FreeLB against a plain step-by-step rewrite of the published procedure, one sample at a time."""

from __future__ import annotations

import pytest
import torch

from tests.methods.small import LENGTHS, flat_gradient, make_batch, make_encoder, make_step, step_context
from tests.training.plain_loop import Row, freelb


def rewritten(encoder, batch, options):
    """The gradient one sample at a time, without padding or shares: the mean over samples of the mean over K passes."""
    model = encoder.model
    for number, length in enumerate(LENGTHS):
        inputs = {name: batch.inputs[name][[number], :length] for name in ("input_ids", "attention_mask")}
        row = Row(model, inputs, batch.labels[[number]], False, 7, 3, number)
        (freelb(row, options) / len(LENGTHS)).backward()
    gradient = flat_gradient(encoder)
    model.zero_grad(set_to_none=False)
    return gradient


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize(("adv_lr", "init", "max_norm"), [(0.1, 0.1, 0.3), (0.5, 1.0, 0.6), (0.3, 0.2, 0.0)])
def test_gradient_is_that_of_the_rewrite(tiny_bert, k, norm, adv_lr, init, max_norm):
    encoder, batch = make_encoder(tiny_bert), make_batch()
    radii = {"adv_lr": adv_lr, "adv_init": init, "adv_max_norm": max_norm}
    options = {"adv_passes": k, "adv_norm": norm, **radii}
    expected = rewritten(encoder, batch, options)
    make_step("freelb", **options)(encoder, batch, step_context())
    assert float((flat_gradient(encoder) - expected).norm() / expected.norm()) < 1e-10


def test_gradient_scales_with_the_share_alone(tiny_bert):
    """The floor under the norm must not see B: a share 1e-6 times smaller gives the same noise."""
    gradients = []
    for share in (0.25, 0.25e-6):
        encoder = make_encoder(tiny_bert)
        make_step("freelb")(encoder, make_batch(share=share), step_context())
        gradients.append(flat_gradient(encoder) / share)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("masks", "equal"), [("shared", True), ("independent", False), ("off", True)])
def test_masks_over_passes(tiny_bert, masks, equal, monkeypatch):
    """Without noise, equal masks make the passes equal."""
    encoder = make_encoder(tiny_bert, dropout=0.3)
    outputs, run = [], encoder.predict
    monkeypatch.setattr(encoder, "predict", lambda inputs: outputs.append(run(inputs)) or outputs[-1])
    make_step("freelb", masks=masks, adv_lr=0.0, adv_init=0.0)(encoder, make_batch(), step_context())
    assert torch.allclose(outputs[0], outputs[2]) == equal
