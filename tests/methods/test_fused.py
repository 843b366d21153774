"""The fused ascent against the exact one, whose passes are its own."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from scala_lab import train
from scala_lab.divergence import output_divergence, task_loss
from scala_lab.errors import UserError
from scala_lab.methods.base import STATISTICS, MicroBatch
from scala_lab.methods.cost import noisy_passes
from scala_lab.methods.recipes import STEP_DEFAULTS, chosen_pga
from scala_lab.methods.scala import FusedAscent, loss_with_derivative
from tests.methods.small import LENGTHS, exact_noise, flat_gradient, make_batch, make_encoder, make_step, step_context
from tests.tiny import write_rows
from tests.training.recipe_runs import recipe_spec

HEADS = [0, 2, 3]


def fused_noise(step, encoder, batch):
    e = encoder.embed(batch.inputs).detach().requires_grad_()
    gamma = encoder.logits(e, batch.inputs)
    f, df = loss_with_derivative(gamma, batch)
    fused = FusedAscent(step.target, e, gamma, df, batch.smoothing)
    if not step.label_gradient:
        (f.sum() * batch.share).backward()
    return step._ascend(encoder, batch, step_context(), e, gamma, fused)[0].detach()


def cosines(left, right):
    return torch.nn.functional.cosine_similarity(left.flatten(1), right.flatten(1))


@pytest.mark.parametrize("label_gradient", [False, True])
@pytest.mark.parametrize("target", ["LP", "GT"])
@pytest.mark.parametrize("classes", HEADS)
def test_literal_ascent_has_the_exact_direction_and_size(tiny_bert, classes, target, label_gradient):
    """rho = 1, so that the noise is the gradient itself beside a random start of 1e-7, and the ball holds it."""
    options = {"ascent": "literal", "rho": 1.0, "omega": 1e9, "sigma": 1e-7, "target": target}
    noises = {}
    for pga, find in (("exact", exact_noise), ("fused", fused_noise)):
        encoder, batch = make_encoder(tiny_bert, classes), make_batch(classes=classes)
        start = make_step(**{**options, "rho": 0.0}, pga="exact")
        step = make_step(**options, pga=pga, label_gradient=label_gradient)
        noises[pga] = find(step, encoder, batch) - exact_noise(start, encoder, batch)
    assert (cosines(noises["exact"], noises["fused"]) > 1 - 1e-9).all()
    sizes = [noise.flatten(1).norm(dim=1) for noise in noises.values()]
    assert torch.allclose(sizes[0], sizes[1], rtol=1e-4)


@pytest.mark.parametrize("classes", HEADS)
def test_with_the_paper_start_every_sample_has_cosine_0_99(tiny_bert, classes):
    encoder, batch = make_encoder(tiny_bert, classes, dtype=torch.float32), make_batch(classes=classes)
    noises = [
        find(make_step("scala-effective", pga=pga), encoder, batch)
        for pga, find in (("exact", exact_noise), ("fused", fused_noise))
    ]
    assert (cosines(*noises) > 0.99).all()


@pytest.mark.parametrize("classes", HEADS)
@pytest.mark.parametrize("label_gradient", [False, True])
@pytest.mark.parametrize(("pga", "find"), [("exact", exact_noise), ("fused", fused_noise)])
def test_whole_gradient_is_that_of_the_written_objective(tiny_bert, classes, label_gradient, pga, find):
    """The whole step against autograd on f + lambda * r with the noise fixed."""
    encoder, batch = make_encoder(tiny_bert, classes), make_batch(classes=classes)
    step = make_step("scala-effective", pga=pga, rho=0.05, omega=0.05, lambda_=3.0, label_gradient=label_gradient)
    delta = find(step, copy.deepcopy(encoder), batch)
    sums = step(encoder, batch, step_context())
    model, inputs = encoder.model, batch.inputs
    e = model.get_input_embeddings()(inputs["input_ids"])
    clean = model(**inputs).logits
    noisy = encoder.logits(e + delta, inputs)
    f = task_loss(clean, batch.labels, batch.regression)
    r = output_divergence(clean if label_gradient else clean.detach(), noisy, batch.regression)
    expected = torch.autograd.grad((f + 3.0 * r).mean(), list(model.parameters()), allow_unused=True)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, torch.zeros_like(parameter) if gradient is None else gradient, atol=1e-11)
    assert sums[STATISTICS.index("loss")] == pytest.approx(float(f.detach().sum()), rel=1e-12)
    assert sums[STATISTICS.index("divergence")] == pytest.approx(float(r.detach().sum()), rel=1e-9)


@pytest.mark.parametrize("classes", HEADS)
def test_micro_batches_add_up_and_keep_their_noise(tiny_bert, classes):
    whole, parts = (make_encoder(tiny_bert, classes) for _ in range(2))
    step = make_step("scala-effective", pga="fused")
    step(whole, make_batch(classes=classes), step_context())
    for rows in ([0], [1, 2, 3]):
        step(parts, make_batch(rows=rows, classes=classes), step_context())
    assert torch.allclose(flat_gradient(whole), flat_gradient(parts), atol=1e-12)
    together = fused_noise(step, whole, make_batch(classes=classes))
    alone = fused_noise(step, whole, make_batch(rows=[2], classes=classes, share=1 / 8192))
    assert torch.allclose(alone[0], together[2, : LENGTHS[2]], rtol=1e-9)


def test_it_saves_the_inner_pass(tiny_bert, monkeypatch):
    for pga, passes in (("fused", 2), ("exact", 3)):
        encoder, calls = make_encoder(tiny_bert), []
        run = encoder.predict
        monkeypatch.setattr(encoder, "predict", lambda inputs, run=run, calls=calls: calls.append(1) or run(inputs))
        make_step("scala-effective", pga=pga)(encoder, make_batch(), step_context())
        assert len(calls) == passes


@pytest.mark.parametrize("classes", HEADS)
def test_a_sample_whose_derivative_vanishes_has_a_vjp_of_its_own(tiny_bert, classes):
    """A regression output that hits its label, or a class that is certain, leaves nothing in the clean backward."""
    encoder, batch = make_encoder(tiny_bert, classes), make_batch(classes=classes)
    with torch.no_grad():
        logits = encoder.logits(encoder.embed(batch.inputs), batch.inputs)
        if classes:
            encoder.model.classifier.bias += 120.0 * torch.nn.functional.one_hot(batch.labels[0], classes)
        else:
            batch.labels.copy_(logits.squeeze(-1).float())
            batch = type(batch)(batch.inputs, logits.squeeze(-1), batch.samples, batch.share, True)
    options = {"ascent": "normalized", "rho": 1.0, "omega": 1e9, "sigma": 1e-7}
    fused = fused_noise(make_step(pga="fused", **options), encoder, batch)
    exact = exact_noise(make_step(pga="exact", **options), encoder, batch)
    assert fused.abs().amax() > 0.5
    assert (cosines(fused, exact)[[0]] > 0.9999).all()


def test_a_confident_prediction_keeps_its_direction_in_float32(tiny_bert):
    """At a margin of 25, p - 1 rounds to 0 in float32 for the true class; the direction must not feel it."""
    noises = []
    for dtype in (torch.float32, torch.float64):
        encoder, batch = make_encoder(tiny_bert, 3, dtype=torch.float32), make_batch(rows=[0], classes=3)
        with torch.no_grad():
            encoder.model.classifier.bias.copy_(torch.tensor([25.0, 0.0, 2.0]))
        encoder.model.to(dtype)
        noises.append(fused_noise(make_step("scala-effective", pga="fused", sigma=1e-3), encoder, batch).double())
    assert cosines(*noises) > 0.9999


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_loss_and_derivative_are_cross_entropy_and_its_derivative(smoothing):
    logits = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    loss, df = loss_with_derivative(logits, MicroBatch({}, labels, labels, 1.0, False, smoothing))
    expected = task_loss(logits, labels, False, smoothing)
    assert torch.allclose(loss, expected, rtol=1e-12)
    for value in (loss, expected):
        (derivative,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
        assert torch.allclose(derivative, df, rtol=1e-12, atol=1e-15)


def options(**changes):
    return {**STEP_DEFAULTS["scala"], "masks": "shared", **changes}


@pytest.mark.parametrize(
    ("changes", "outputs", "drops_out", "pga", "passes"),
    [
        ({}, 2, True, "fused", 6),
        ({}, 1, True, "fused", 6),
        ({}, 3, True, "fused", 7),
        ({}, 4, True, "exact", 8),
        ({"label_gradient": True}, 2, True, "fused", 7),
        ({"label_gradient": True}, 3, True, "exact", 8),
        ({"target": "GT"}, 20, True, "fused", 6),
        ({"masks": "independent"}, 2, True, "exact", 8),
        ({"masks": "independent"}, 2, False, "fused", 6),
        ({"masks": "off"}, 2, True, "fused", 6),
        ({"pga_steps": 2}, 2, True, "exact", 10),
        ({"pga": "exact"}, 2, True, "exact", 8),
        ({"noise": "gaussian"}, 2, True, None, 6),
    ],
)
def test_auto_is_fused_where_that_is_valid_and_cheaper(changes, outputs, drops_out, pga, passes):
    assert chosen_pga(options(**changes), outputs, drops_out) == pga
    assert noisy_passes(options(**changes), outputs, drops_out) == passes


@pytest.mark.parametrize(
    ("changes", "outputs", "says"),
    [
        ({"masks": "independent"}, 2, "masks shared or off"),
        ({"pga_steps": 3}, 2, "one ascent step"),
        ({}, 5, "up to 3 classes"),
        ({"noise": "none"}, 2, "needs noise pga"),
    ],
)
def test_fused_is_refused_where_it_is_wrong(changes, outputs, says):
    with pytest.raises(UserError, match=says):
        chosen_pga(options(pga="fused", **changes), outputs, drops_out=True)


def test_with_independent_masks_the_fused_direction_would_be_wrong(tiny_bert):
    """Why auto is exact there: the disagreement of the masks, not the noise, is what the gradient sees."""
    encoder, batch = make_encoder(tiny_bert, dropout=0.3), make_batch()
    exact = exact_noise(make_step("scala-effective", masks="independent"), encoder, batch)
    fused = fused_noise(make_step("scala-effective", pga="fused", masks="shared"), encoder, batch)
    assert cosines(exact, fused).mean() < 0.9


def run(tiny_bert, rows, folder, **values):
    settings = {"dropout": 0.1, "rho": 0.05, "omega": 0.05, "lr": 3e-3, "epochs": 4, "eval_file": None, **values}
    result = train(recipe_spec("scala-effective", tiny_bert, rows, **settings), folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return result, lines


def test_training_curves_agree(tiny_bert, tmp_path):
    """First order in a start of 1e-5: curves agree to 1e-3 of the loss; without noise they do not."""
    rows = write_rows(tmp_path / "rows.csv", 41)
    exact, exact_lines = run(tiny_bert, rows, tmp_path / "exact", pga="exact")
    fused, fused_lines = run(tiny_bert, rows, tmp_path / "auto")
    _, quiet_lines = run(tiny_bert, rows, tmp_path / "quiet", lambda_=0.0)
    assert [result.record["pga"] for result in (exact, fused)] == ["exact", "fused"]
    for name in ("loss", "divergence"):
        curves = [[line[name] for line in lines] for lines in (exact_lines, fused_lines)]
        assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    losses = [[line["loss"] for line in lines] for lines in (exact_lines, quiet_lines)]
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)


def test_fused_that_does_not_hold_is_refused_before_anything_is_written(tiny_bert, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 41)
    with pytest.raises(UserError, match="masks shared or off"):
        run(tiny_bert, rows, tmp_path / "run", pga="fused", masks="independent")
    assert not (tmp_path / "run").exists()
