from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from scala_lab.divergence import output_divergence, task_loss
from scala_lab.methods.base import STATISTICS
from scala_lab.methods.recipes import RECIPES
from scala_lab.methods.scala import _is_finite
from tests.methods.small import LENGTHS, exact_noise, flat_gradient, make_batch, make_encoder, make_step, step_context

SCALA_RECIPES = [name for name, recipe in RECIPES.items() if recipe.step == "scala"]


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("target", ["LP", "GT"])
def test_inner_gradient_against_central_differences(tiny_bert, classes, target):
    encoder, batch = make_encoder(tiny_bert, classes), make_batch(classes=classes)
    step = make_step(target=target)
    e = encoder.embed(batch.inputs).detach()
    gamma = encoder.logits(e, batch.inputs).detach()
    rng = torch.Generator().manual_seed(0)
    delta = torch.randn(e.shape, generator=rng, dtype=e.dtype) * 0.05 * batch.mask_BL1
    g = step._exact_gradient(encoder, batch, step_context(), e + delta, gamma, 0)

    def raised(noise):
        with torch.no_grad():
            logits = encoder.logits(e + noise, batch.inputs)
            if target == "GT":
                return float(task_loss(logits, batch.labels, batch.regression).sum())
            return float(output_divergence(gamma, logits, batch.regression).sum())

    h = 1e-5
    for sample, token, width in itertools.product(range(4), (0, 2), (0, 7)):
        bump = torch.zeros_like(delta)
        bump[sample, token, width] = h
        expected = (raised(delta + bump) - raised(delta - bump)) / (2 * h)
        assert float(g[sample, token, width]) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_inner_gradient_leaves_the_weights_alone(tiny_bert):
    encoder = make_encoder(tiny_bert)
    exact_noise(make_step("scala-effective"), encoder, make_batch())
    assert flat_gradient(encoder).abs().max() == 0


@pytest.mark.parametrize("pga_steps", [1, 3])
@pytest.mark.parametrize("ascent", ["literal", "normalized"])
@pytest.mark.parametrize(("rho", "omega"), [(1e-4, 1e-5), (1e-1, 1e-3), (1e3, 1e-2)])
def test_noise_stays_in_the_ball_and_off_the_padding(tiny_bert, ascent, rho, omega, pga_steps):
    encoder, batch = make_encoder(tiny_bert), make_batch(length=12)
    delta = exact_noise(make_step(ascent=ascent, rho=rho, omega=omega, pga_steps=pga_steps), encoder, batch)
    assert 0 < delta.abs().max() <= omega
    for sample, length in enumerate(LENGTHS):
        assert torch.equal(delta[sample, length:], torch.zeros_like(delta[sample, length:]))
        assert (delta[sample, :length].abs().amax(-1) > 0).all()


def test_normalized_ascent_moves_every_token_by_rho(tiny_bert):
    encoder, batch = make_encoder(tiny_bert), make_batch()
    delta = exact_noise(make_step("scala-effective", rho=1e-3, omega=1.0, sigma=1e-9), encoder, batch)
    for sample, length in enumerate(LENGTHS):
        assert torch.allclose(delta[sample, :length].abs().amax(-1), torch.tensor(1e-3, dtype=delta.dtype), rtol=1e-4)


def test_noise_raises_the_divergence_more_than_chance(tiny_bert):
    encoder, batch = make_encoder(tiny_bert), make_batch()
    divergence = {}
    for kind in ("pga", "gaussian"):
        step = make_step("scala-effective", noise=kind)
        divergence[kind] = step(encoder, batch, step_context())[STATISTICS.index("divergence")]
    assert divergence["pga"] > 10 * divergence["gaussian"] > 0


@pytest.mark.parametrize("method", ["scala", "scala-effective", "gaussian"])
def test_a_samples_noise_does_not_depend_on_its_neighbours_or_the_batch_size(tiny_bert, method):
    encoder = make_encoder(tiny_bert)
    step = make_step(method)
    together = exact_noise(step, encoder, make_batch(share=0.25))
    alone = exact_noise(step, encoder, make_batch(rows=[2], share=1.0))
    other_company = exact_noise(step, encoder, make_batch(rows=[2, 3], length=12, share=1 / 8192))
    length = LENGTHS[2]
    assert torch.allclose(alone[0, :length], together[2, :length], rtol=1e-6, atol=1e-15)
    assert torch.allclose(other_company[0, :length], together[2, :length], rtol=1e-6, atol=1e-15)
    later = exact_noise(step, encoder, make_batch(rows=[2]), step_context(step=4))
    assert not torch.allclose(later[0, :length], together[2, :length], rtol=1e-2)


@pytest.mark.parametrize("method", SCALA_RECIPES)
@pytest.mark.parametrize("options", [{"lambda_": 0.0}, {"delay": 2.0}])
def test_without_noise_term_it_is_the_plain_step_to_the_bit(tiny_bert, method, options, monkeypatch):
    plain, scala = (make_encoder(tiny_bert, dtype=torch.float32, dropout=0.3) for _ in range(2))
    calls = []
    for encoder, step in ((plain, make_step("lamb")), (scala, make_step(method, **options))):
        run = encoder.predict
        monkeypatch.setattr(encoder, "predict", lambda inputs, run=run: calls.append(1) or run(inputs))
        step(encoder, make_batch(), step_context(epoch=1.9))
    assert torch.equal(flat_gradient(plain), flat_gradient(scala))
    assert len(calls) == 2


def test_after_the_delay_the_noise_term_is_there(tiny_bert):
    plain, scala = (make_encoder(tiny_bert) for _ in range(2))
    make_step("lamb")(plain, make_batch(), step_context(epoch=2.0))
    sums = make_step("scala-effective", delay=2.0, omega=0.1, rho=0.1)(scala, make_batch(), step_context(epoch=2.0))
    assert sums[STATISTICS.index("noised")] == 4
    assert not torch.allclose(flat_gradient(plain), flat_gradient(scala), rtol=1e-3)


def test_a_settled_run_has_noise_before_the_delay(tiny_bert):
    step = make_step("scala", delay=2.0, delay_rule="settled")
    for settled, noised in ((False, 0), (True, 4)):
        context = dataclasses.replace(step_context(epoch=1.0), settled=settled)
        assert step(make_encoder(tiny_bert), make_batch(), context)[STATISTICS.index("noised")] == noised


def dropout_disagreement(folder, masks):
    encoder = make_encoder(folder, dropout=0.3)
    sums = make_step("two-draws", masks=masks)(encoder, make_batch(), step_context())
    assert encoder.model.training
    return sums[STATISTICS.index("divergence")]


def test_masks(tiny_bert):
    assert dropout_disagreement(tiny_bert, "independent") > 1e-3
    assert dropout_disagreement(tiny_bert, "shared") == 0
    assert dropout_disagreement(tiny_bert, "off") == 0


@pytest.mark.parametrize("where", ["inner", "adversarial"])
def test_a_sample_whose_noise_is_not_finite_is_left_out_and_counted(tiny_bert, where, monkeypatch):
    """Row 1 gives infinite logits once it is noised; the other rows' gradient must be what it is without the fault."""
    encoder, batch, step = make_encoder(tiny_bert), make_batch(), make_step("scala-effective")
    run, delta = encoder.predict, exact_noise(step, encoder, batch)
    calls = []

    def faulty(inputs):
        logits = run(inputs)
        calls.append(1)
        noisy = len(calls) == 2 if where == "inner" else len(calls) == 3
        return logits * torch.tensor([1.0, float("inf"), 1.0, 1.0]).view(-1, 1) if noisy else logits

    monkeypatch.setattr(encoder, "predict", faulty)
    sums = step(encoder, batch, step_context())
    assert sums[STATISTICS.index("noised")] == 3
    assert sums[STATISTICS.index("skipped")] == 1
    gradient = flat_gradient(encoder)
    assert gradient.isfinite().all()

    monkeypatch.setattr(encoder, "predict", run)
    logits = encoder.predict(batch.inputs)
    r = output_divergence(logits.detach(), encoder.logits(encoder.embed(batch.inputs) + delta, batch.inputs), False)
    objective = task_loss(logits, batch.labels, False).sum() + r[[0, 2, 3]].sum()
    for parameter in encoder.model.parameters():
        parameter.grad.zero_()
    (objective * batch.share).backward()
    assert torch.allclose(gradient, flat_gradient(encoder), atol=1e-12)


def test_options_of_the_step_are_those_of_the_registry():
    fields = {field.name.rstrip("_") for field in dataclasses.fields(make_step("scala"))}
    assert fields | {"radius_unit"} == set(RECIPES["scala"].option_values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("index", [0, 5, 383, 9215])
def test_a_sample_is_finite_if_all_of_its_values_are(value, index):
    values = torch.zeros(3, 24, 384)
    values[1].view(-1)[index] = value
    values[2, 3, 7] = torch.finfo(torch.float32).max
    assert _is_finite(values).tolist() == [True, False, True]
