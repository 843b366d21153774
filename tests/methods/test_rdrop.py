"""R-Drop against the objective as its paper prints it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

from scala_lab.methods.base import STATISTICS
from scala_lab.methods.recipes import RECIPES
from tests.methods.small import flat_gradient, make_batch, make_encoder, make_step, step_context

HEADS = [0, 2, 3]


def two_passes(encoder, batch, context):
    """Outputs of the two dropout draws."""
    outputs = []
    for draw in (0, 1):
        context.seed_dropout(draw)
        outputs.append(encoder.logits(encoder.embed(batch.inputs), batch.inputs))
    return outputs


def printed_objective(outputs, batch, alpha):
    """Negative log-likelihoods of both passes plus alpha times the mean of both divergences, summed over samples."""
    if batch.regression:
        first, second = (output.squeeze(-1) for output in outputs)
        return ((first - batch.labels) ** 2 + (second - batch.labels) ** 2 + alpha * (first - second) ** 2).sum()
    p, q = (output.log_softmax(-1) for output in outputs)
    likelihood = functional.nll_loss(p, batch.labels, reduction="sum") + functional.nll_loss(
        q, batch.labels, reduction="sum"
    )
    divergences = functional.kl_div(p, q, reduction="sum", log_target=True) + functional.kl_div(
        q, p, reduction="sum", log_target=True
    )
    return likelihood + alpha / 2 * divergences


@pytest.mark.parametrize(("alpha", "printed"), [(None, 1.0), (0.0, 0.0), (3.0, 6.0)])
@pytest.mark.parametrize("classes", HEADS)
def test_gradient_is_half_that_of_the_printed_objective_with_half_its_weight(tiny_bert, classes, alpha, printed):
    encoder, reference = (make_encoder(tiny_bert, classes, dropout=0.3) for _ in range(2))
    batch = make_batch(classes=classes)
    make_step("rdrop", **({} if alpha is None else {"alpha": alpha}))(encoder, batch, step_context())
    objective = printed_objective(two_passes(reference, batch, step_context()), batch, printed)
    (objective * batch.share / 2).backward()
    assert flat_gradient(encoder).norm() > 0.01
    assert torch.allclose(flat_gradient(encoder), flat_gradient(reference), rtol=0, atol=1e-12)


@pytest.mark.parametrize("classes", HEADS)
def test_without_dropout_it_is_the_plain_step(tiny_bert, classes):
    plain, rdrop = (make_encoder(tiny_bert, classes) for _ in range(2))
    batch = make_batch(classes=classes)
    expected = make_step("lamb")(plain, batch, step_context())
    sums = make_step("rdrop")(rdrop, batch, step_context())
    assert torch.allclose(flat_gradient(rdrop), flat_gradient(plain), rtol=0, atol=1e-12)
    assert torch.allclose(sums[:2], expected[:2], rtol=1e-12)
    assert sums[STATISTICS.index("divergence")] == 0


def test_before_its_delay_it_is_the_plain_step_to_the_bit(tiny_bert):
    plain, rdrop = (make_encoder(tiny_bert, dropout=0.3) for _ in range(2))
    batch, early, step = make_batch(), step_context(epoch=1.9), make_step("rdrop", delay=2.0)
    assert step(rdrop, batch, early).equal(make_step("lamb")(plain, batch, early))
    assert flat_gradient(rdrop).equal(flat_gradient(plain))
    assert [step.memory_factor(rdrop, context) for context in (early, step_context(epoch=2.0))] == [1.0, 2.0]


def test_statistics_are_sums_over_all_samples(tiny_bert):
    encoder, batch = make_encoder(tiny_bert, dropout=0.3), make_batch()
    sums = dict(zip(STATISTICS, make_step("rdrop")(encoder, batch, step_context()).tolist(), strict=True))
    p, q = (output.detach() for output in two_passes(encoder, batch, step_context()))
    loss = sum(float(functional.cross_entropy(output, batch.labels, reduction="sum")) / 2 for output in (p, q))
    divergence = float(((p.softmax(-1) - q.softmax(-1)) * (p.log_softmax(-1) - q.log_softmax(-1))).sum())
    assert sums["loss"] == pytest.approx(loss, rel=1e-12)
    assert sums["divergence"] == pytest.approx(divergence, rel=1e-12)
    assert divergence > 1e-3
    assert (sums["noised"], sums["skipped"]) == (4, 0)


def test_options_of_the_step_are_those_of_the_registry():
    fields = {field.name for field in dataclasses.fields(make_step("rdrop"))}
    assert fields == set(RECIPES["rdrop"].option_values())
