"""Dropout whose masks cost a sixth of torch's on CPU.

torch draws one random number per entry, which takes more time than a small encoder's attention. Here one number of 64
bits serves four entries, 16 bits each, so a rate is kept to the nearest 1/65536; the scale fits the rate that is drawn,
so the mean stays exact. Masks come from torch's own generator: seeding it fixes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16


def quick_dropout(values: Tensor, rate: float) -> Tensor:
    """Zero entries at random, and scale the others up."""
    dropped = round(rate * LEVELS)
    if not 0 < dropped < LEVELS or not values.is_cpu:
        return nn.functional.dropout(values, rate)
    words = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    kept = words.view(torch.int16)[: values.numel()].view(values.shape) >= dropped - LEVELS // 2
    return values * kept.to(values.dtype).mul_(LEVELS / (LEVELS - dropped))


class QuickDropout(nn.Dropout):
    """nn.Dropout by quick masks."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero entries at random while training."""
        return quick_dropout(input, self.p) if self.training else input


def quicken_dropout(model: nn.Module) -> None:
    """Have every plain dropout module of a model draw its masks the quick way."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = QuickDropout


def dropout_rates(config: Any) -> dict[str, float | None]:
    """The settings of a model's config that are rates of dropout; None takes the place of another of them."""
    return {
        name: value
        for name, value in config.to_dict().items()
        if "dropout" in name and (value is None or isinstance(value, (int, float)))
    }
