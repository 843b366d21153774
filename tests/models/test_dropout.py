from __future__ import annotations

import pytest
import torch
from torch import nn

from scala_lab.models.fast_layers import LEVELS, FastDropout, use_fast_dropout

ENTRIES = 1_000_001


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_zeros_and_mean_are_those_of_the_rate(rate):
    torch.manual_seed(0)
    out = FastDropout(rate)(torch.ones(ENTRIES))
    deviation = (rate * (1 - rate) / ENTRIES) ** 0.5
    assert float((out == 0).double().mean()) == pytest.approx(rate, abs=5 * deviation + 1 / LEVELS)
    assert float(out.double().mean()) == pytest.approx(1.0, abs=5 * deviation / (1 - rate))
    drawn = round(rate * LEVELS) / LEVELS
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - drawn)], rel=1e-6)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 64])
def test_neighbours_are_independent(lag):
    torch.manual_seed(1)
    kept = (FastDropout(0.5)(torch.ones(ENTRIES)) != 0).double() - 0.5
    assert abs(float((kept[lag:] * kept[:-lag]).mean()) * 4) < 5 / ENTRIES**0.5


def test_each_of_the_four_entries_of_a_word_has_the_rate():
    torch.manual_seed(2)
    dropped = (FastDropout(0.1)(torch.ones(ENTRIES - 1)) == 0).double().view(-1, 4).mean(0)
    assert dropped.tolist() == pytest.approx([0.1] * 4, abs=5 * (0.09 / (ENTRIES // 4)) ** 0.5)


def test_seeding_torch_fixes_the_mask_and_the_gradient_has_the_same_one():
    values = torch.ones(7, 13, dtype=torch.float64, requires_grad=True)
    masks = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        out = FastDropout(0.3)(values)
        (gradient,) = torch.autograd.grad(out.sum(), values)
        assert torch.equal(gradient, out)
        masks.append(out)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_nothing_is_dropped_in_eval_mode_nor_at_rate_0():
    values = torch.randn(5, 5)
    assert torch.equal(FastDropout(0.5).eval()(values), values)
    assert torch.equal(FastDropout(0.0)(values), values)


def test_a_models_dropout_modules_become_quick_ones_and_keep_their_rate():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25), nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5)))
    use_fast_dropout(model)
    assert [type(module) for module in model.modules() if "Dropout" in type(module).__name__] == [
        *[FastDropout] * 2,
        nn.AlphaDropout,
    ]
    assert model[1].p == 0.25
