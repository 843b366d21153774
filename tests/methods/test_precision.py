"""Under autocast the noise goes where float64 would send it.

The random start moves the outputs by about 1e-5 of their size, which bfloat16 and float16 cannot show: the difference
of two such passes is their rounding.
"""

from __future__ import annotations

import pytest
import torch

from scala_lab.methods.freelb import FreeLBStep
from tests.methods.small import exact_noise, make_batch, make_encoder, make_step, step_context
from tests.methods.test_fused import cosines, fused_noise

HALF = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
HEADS = pytest.mark.parametrize("classes", [0, 2, 3])


def pair_of_encoders(folder, classes, half, dropout=0.0):
    """The same weights in float64, and in float32 with autocast."""
    precise, cast = (make_encoder(folder, classes, dtype, dropout) for dtype in (torch.float64, torch.float32))
    cast.model.load_state_dict(precise.model.state_dict())
    cast.autocast = half
    return precise, cast


def ascent(find, encoder, batch, **options):
    """Where the ascent goes from the paper's random start, with a rate at which it leaves the start behind."""
    options = {"ascent": "literal", "sigma": 1e-5, "rho": 1e9, "omega": 1e30, **options}
    step_context().seed_dropout()
    return find(make_step(**options), encoder, batch).double()


@HALF
@HEADS
@pytest.mark.parametrize("target", ["LP", "GT"])
@pytest.mark.parametrize(("masks", "dropout"), [("off", 0.0), ("shared", 0.0), ("shared", 0.1)])
def test_exact_ascent_has_the_direction_of_float64(tiny_bert, classes, target, masks, dropout, half):
    batch = make_batch(classes=classes)
    noises = [
        ascent(exact_noise, encoder, batch, pga="exact", target=target, masks=masks)
        for encoder in pair_of_encoders(tiny_bert, classes, half, dropout)
    ]
    assert (cosines(*noises) > 0.99).all()


@HALF
@HEADS
def test_fused_ascent_has_it_too(tiny_bert, classes, half):
    """It takes no difference of two passes."""
    batch = make_batch(classes=classes)
    noises = [
        ascent(fused_noise, encoder, batch, pga="fused") for encoder in pair_of_encoders(tiny_bert, classes, half)
    ]
    assert (cosines(*noises) > 0.99).all()


@HALF
@HEADS
def test_ascents_of_freelb_have_it_too(tiny_bert, classes, half, monkeypatch):
    """Its gradient is that of the loss itself."""
    ascend, taken = FreeLBStep._ascend, []
    monkeypatch.setattr(
        FreeLBStep,
        "_ascend",
        lambda self, delta, batch: taken.append(delta.grad.double()) or ascend(self, delta, batch),
    )
    for encoder in pair_of_encoders(tiny_bert, classes, half):
        make_step("freelb")(encoder, make_batch(classes=classes), step_context())
    assert len(taken) == 4
    for precise, cast in zip(taken[:2], taken[2:], strict=True):
        assert (cosines(precise, cast) > 0.99).all()


@pytest.mark.parametrize(
    ("autocast", "target", "passes"),
    [
        (None, "LP", [False, False, False]),
        (torch.bfloat16, "GT", [True, False, True]),
        (torch.bfloat16, "LP", [True, False, False, True]),
    ],
)
def test_only_inner_passes_leave_autocast_and_float32_runs_cost_what_they_did(tiny_bert, autocast, target, passes):
    encoder = make_encoder(tiny_bert, dtype=torch.float32)
    encoder.autocast = autocast
    step = make_step("scala", target=target)
    step(encoder, make_batch(), step_context())  # the first pass of an encoder does more than later ones
    seen = []
    encoder.model.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    step(encoder, make_batch(), step_context())
    assert seen == passes


def test_full_precision_comes_to_an_end(tiny_bert):
    encoder = make_encoder(tiny_bert, dtype=torch.float32)
    encoder.autocast = torch.bfloat16
    with pytest.raises(KeyboardInterrupt), encoder.full_precision():
        assert encoder.autocast is None
        raise KeyboardInterrupt
    assert encoder.autocast == torch.bfloat16
