"""FreeLB against a plain step-by-step rewrite of the published procedure."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from scala_lab.methods.base import uniform_noise
from tests.methods.small import LENGTHS, flat_gradient, make_batch, make_encoder, make_step, step_context


def rewritten(encoder, batch, k, norm, adv_lr, init, max_norm):
    """One sample at a time, no padding, no shares: the mean over samples of the mean loss over K passes."""
    model = encoder.model
    total = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    deltas = []
    for sample, length in enumerate(LENGTHS):
        ids = batch.inputs["input_ids"][sample : sample + 1, :length]
        width = model.get_input_embeddings().embedding_dim
        start = uniform_noise(
            7, 3, batch.samples[sample : sample + 1], torch.arange(length)[None], width, torch.float64
        )
        delta = start * init / (math.sqrt(length * width) if norm == "l2" else 1.0)
        for turn in range(k):
            delta = delta.detach().requires_grad_()
            embeddings = model.get_input_embeddings()(ids)
            logits = model(inputs_embeds=embeddings + delta, attention_mask=torch.ones_like(ids)).logits
            loss = functional.cross_entropy(logits, batch.labels[sample : sample + 1])
            names = dict(model.named_parameters())
            gradients = torch.autograd.grad(loss, [delta, *names.values()], allow_unused=True)
            for name, gradient in zip(names, gradients[1:], strict=True):
                if gradient is not None:
                    total[name] += gradient / (k * len(LENGTHS))
            if turn == k - 1:
                break
            g, delta = gradients[0], delta.detach()
            if norm == "l2":
                delta = delta + adv_lr * g / max(float(g.norm()), 1e-8)
                if max_norm > 0 and float(delta.norm()) > max_norm:
                    delta = delta * max_norm / float(delta.norm())
            else:
                delta = delta + adv_lr * g / max(float(g.abs().max()), 1e-8)
                delta = delta.clamp(-max_norm, max_norm) if max_norm > 0 else delta
        deltas.append(delta)
    return torch.cat([value.flatten() for value in total.values()])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize(("adv_lr", "init", "max_norm"), [(0.1, 0.1, 0.3), (0.5, 1.0, 0.6), (0.3, 0.2, 0.0)])
def test_gradient_is_that_of_the_rewrite(tiny_bert, k, norm, adv_lr, init, max_norm):
    encoder, batch = make_encoder(tiny_bert), make_batch()
    expected = rewritten(encoder, batch, k, norm, adv_lr, init, max_norm)
    step = make_step("freelb", adv_passes=k, adv_norm=norm, adv_lr=adv_lr, adv_init=init, adv_max_norm=max_norm)
    step(encoder, batch, step_context())
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
