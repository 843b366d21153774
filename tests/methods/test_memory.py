"""A step with noise needs the memory of a plain one: never the graphs of two passes over all samples at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scala_lab.batches import BatchPlan
from scala_lab.methods.base import STATISTICS, MicroBatch
from tests.methods.live_bytes import LiveBytes
from tests.methods.small import make_encoder, make_step, step_context
from tests.tiny import save_tiny_model

MAX_RATIO = 1.1
"""Peak of a step with noise over that of a plain one."""
SAMPLES, LENGTH, WIDTH = 16, 32, 64


@pytest.fixture(scope="module")
def deep_bert(tmp_path_factory):
    """Four layers, so that what the passes keep for their backward is most of the memory."""
    return save_tiny_model(tmp_path_factory.mktemp("deep") / "bert", hidden=WIDTH, layers=4, dropout=0.1)


def long_batch(classes, samples=SAMPLES):
    ids = torch.randint(5, 45, (samples, LENGTH), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    labels = torch.arange(samples) % classes if classes else torch.arange(samples) / 8
    return MicroBatch(inputs, labels, torch.arange(samples), 1 / SAMPLES, regression=classes == 0)


def peak(step, folder, classes, autocast=None, change=None):
    """Peak bytes of a step, its samples and its statistics, at the size of micro-batches that the step asks for.

    The first step on a model is not the one that is measured.
    """
    encoder = make_encoder(folder, classes, dtype=torch.float32, dropout=None)
    encoder.autocast = autocast
    samples = int(SAMPLES / step.memory_factor(encoder, step_context()))
    batch = long_batch(classes, samples)
    step(encoder, batch, step_context())
    if change is not None:
        change(encoder)
    weights = [*encoder.model.parameters(), *encoder.model.buffers()]
    gradients = [parameter.grad for parameter in encoder.model.parameters()]
    with LiveBytes([*weights, *gradients, *batch.inputs.values(), batch.labels, batch.samples]) as live:
        sums = step(encoder, batch, step_context())
    return live.peak, samples, sums


@pytest.fixture(scope="module")
def plain_peaks(deep_bert):
    """Of a plain step, by classes."""
    return {classes: peak(make_step("lamb"), deep_bert, classes)[0] for classes in (0, 2, 3)}


NOISY = {
    "exact": ("scala", {"pga": "exact"}),
    "exact, three steps": ("scala", {"pga": "exact", "pga_steps": 3}),
    "exact, masks off": ("scala-effective", {"pga": "exact", "masks": "off"}),
    "fused": ("scala-effective", {"pga": "fused"}),
    "fused, true label": ("scala-effective", {"pga": "fused", "target": "GT"}),
    "exact with the label's gradient": ("scala", {"pga": "exact", "label_gradient": True}),
    "fused with the label's gradient": ("scala-effective", {"pga": "fused", "label_gradient": True}),
    "gaussian": ("gaussian", {}),
    "two draws": ("two-draws", {}),
    "R-Drop": ("rdrop", {}),
    "FreeLB": ("freelb", {"adv_passes": 3}),
}


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("name", NOISY)
def test_noise_takes_a_tenth_more_at_most(deep_bert, plain_peaks, name, classes):
    method, options = NOISY[name]
    bytes_, samples, sums = peak(make_step(method, **options), deep_bert, classes)
    assert sums[STATISTICS.index("noised")] == samples >= SAMPLES / 2
    assert bytes_ <= MAX_RATIO * plain_peaks[classes]


@pytest.mark.parametrize(("name", "classes", "share"), [("fused", 2, 1.0), ("fused", 3, 7 / 8), ("R-Drop", 2, 0.5)])
def test_micro_batches_are_smaller_where_a_graph_stays(deep_bert, name, classes, share):
    method, options = NOISY[name]
    encoder, step = make_encoder(deep_bert, classes), make_step(method, **options)
    assert step.memory_factor(encoder, step_context()) == pytest.approx(1 / share)
    plan = BatchPlan(lengths=np.full(64, 8), batch_size=64, micro_batch=16)
    parts = plan.deal(plan.global_batch(0), memory=step.memory_factor(encoder, step_context()))
    assert max(map(len, parts)) <= 16 * share
    assert sorted(row for part in parts for row in part) == list(range(64))


def test_steps_before_the_noise_starts_are_as_large_as_plain_ones(deep_bert):
    step = make_step("scala-effective", pga="fused", label_gradient=True, delay=1.0)
    encoder = make_encoder(deep_bert, 2)
    assert [step.memory_factor(encoder, step_context(epoch=epoch)) for epoch in (0.5, 1.0)] == [1.0, 2.0]


def test_noise_that_is_not_finite_takes_no_more(deep_bert, plain_peaks):
    """The adversarial pass is then run a second time."""

    def break_first_adversarial_pass(encoder):
        run, calls = encoder.predict, []

        def broken(inputs):
            calls.append(1)
            return run(inputs) * (float("inf") if len(calls) == 2 else 1.0)

        encoder.predict = broken

    bytes_, _, sums = peak(make_step("gaussian"), deep_bert, 2, change=break_first_adversarial_pass)
    assert sums[STATISTICS.index("skipped")] == SAMPLES
    assert bytes_ <= MAX_RATIO * plain_peaks[2]


def test_inner_passes_in_float32_take_no_more_than_a_plain_step_in_float32(deep_bert, plain_peaks):
    bytes_, _, _ = peak(make_step("scala", pga="exact"), deep_bert, 2, autocast=torch.bfloat16)
    assert bytes_ <= MAX_RATIO * plain_peaks[2]


def test_what_a_graph_keeps_is_counted_until_its_backward():
    weight = torch.ones(100, 100, requires_grad=True)
    with LiveBytes([weight]) as live:
        result = (weight * 2).square().sum()
        assert live.now == 4 * 10_000 + 4  # the square's input, and the sum
        assert live.peak == 8 * 10_000 + 4
        result.backward()
        del result
        assert live.now == 4 * 10_000  # the gradient
    assert live.peak < 20 * 10_000
