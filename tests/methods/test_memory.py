"""A step with noise needs the memory of a plain one: never the graphs of two passes over all samples at once."""

from __future__ import annotations

import pytest
import torch

from scala_lab.methods.step import STATISTICS, MicroBatch
from tests.methods.live_bytes import LiveBytes
from tests.methods.small import make_encoder, make_step, moment
from tests.tiny import save_tiny_model

MOST = 1.1
"""Peak of a step with noise over that of a plain one."""
SAMPLES, LENGTH, WIDTH = 16, 32, 64


@pytest.fixture(scope="module")
def deep_bert(tmp_path_factory):
    """Four layers, so that what the passes keep for their backward is most of the memory."""
    return save_tiny_model(tmp_path_factory.mktemp("deep") / "bert", hidden=WIDTH, layers=4, dropout=0.1)


def long_batch(classes):
    ids = torch.randint(5, 45, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    labels = torch.arange(SAMPLES) % classes if classes else torch.arange(SAMPLES) / 8
    return MicroBatch(inputs, labels, torch.arange(SAMPLES), 1 / SAMPLES, regression=classes == 0)


def peak(step, folder, classes, autocast=None, change=None):
    """Peak bytes of a step, and its statistics; the first step on a model is not the one that is measured."""
    encoder, batch = make_encoder(folder, classes, dtype=torch.float32, dropout=None), long_batch(classes)
    encoder.autocast = autocast
    step(encoder, batch, moment())
    if change is not None:
        change(encoder)
    weights = [*encoder.model.parameters(), *encoder.model.buffers()]
    gradients = [parameter.grad for parameter in encoder.model.parameters()]
    with LiveBytes([*weights, *gradients, *batch.inputs.values(), batch.labels, batch.samples]) as live:
        found = step(encoder, batch, moment())
    return live.peak, found


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
    bytes_, found = peak(make_step(method, **options), deep_bert, classes)
    assert found[STATISTICS.index("noised")] == SAMPLES
    assert bytes_ <= MOST * plain_peaks[classes]


def test_noise_that_is_not_finite_takes_no_more(deep_bert, plain_peaks):
    """The adversarial pass is then run a second time."""

    def break_first_adversarial_pass(encoder):
        run, calls = encoder._run, []

        def broken(**inputs):
            calls.append(1)
            return run(**inputs) * (float("inf") if len(calls) == 2 else 1.0)

        encoder._run = broken

    bytes_, found = peak(make_step("gaussian"), deep_bert, 2, change=break_first_adversarial_pass)
    assert found[STATISTICS.index("skipped")] == SAMPLES
    assert bytes_ <= MOST * plain_peaks[2]


def test_inner_passes_in_float32_take_no_more_than_a_plain_step_in_float32(deep_bert, plain_peaks):
    bytes_, _ = peak(make_step("scala", pga="exact"), deep_bert, 2, autocast=torch.bfloat16)
    assert bytes_ <= MOST * plain_peaks[2]


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
