"""From a spec to an optimizer, and the learning rate over steps, batch sizes and encoder widths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from scala_lab.config import OptimSpec

REFERENCE_BATCH = 32
"""The batch size at which rates are quoted."""

REFERENCE_WIDTH = 384
"""The encoder width at which rates are quoted."""

BASE_RATE: Mapping[str, float] = {"adamw": 1.77e-4, "lamb": 1.77e-3, "ngd": 1.77e-3}
"""Peak rate at the reference batch and width; at batch size 1024 that is 1e-3 for adamw and 1e-2 for the others."""

WIDER_EXPONENT = 2.0
"""How fast the rate falls for encoders wider than the reference: 4.4e-5 for adamw at BERT-base's 768."""

NARROWER_EXPONENT: Mapping[str, float] = {"adamw": 0.6, "lamb": 0.0, "ngd": 0.0}
"""How fast it rises for narrower encoders: 3e-3 for adamw at the embedded encoder's 64 and batch size 1024. The updates
of the others are proportional to the weight norm, whatever the number of weights."""


def build_optimizer(model: torch.nn.Module, spec: OptimSpec, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of a resolved spec for a model that is already on its device and in its dtype."""
    import torch

    from scala_lab.optim import Lamb, Ngd
    from scala_lab.optim.groups import parameter_groups

    if spec.optimizer is None or spec.groups is None or spec.eps is None:
        raise ValueError("build_optimizer needs a resolved spec: optimizer, groups and eps are still open")
    groups = parameter_groups(model, spec.weight_decay, spec.groups, spec.adapt_all, spec.optimizer)
    limits = {"max_weight_norm": spec.max_weight_norm, "min_weight_norm": spec.min_weight_norm}
    betas = (spec.beta1, spec.beta2)
    if spec.optimizer == "lamb":
        return Lamb(groups, lr=lr, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, **limits)
    if spec.optimizer == "ngd":
        return Ngd(groups, lr=lr, weight_decay=spec.weight_decay, **limits)
    fused = all(param.is_floating_point() and param.device.type in ("cpu", "cuda") for param in model.parameters())
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=fused)


def rate_factor(step: int, total: int, warmup: float) -> float:
    """Return the share of the peak rate at a 0-based step: linear warm-up to 1, then linear decay, never 0.

    min((step + 1) / (W + 1), (total - step) / (total - W)) with W = round(warmup * total) warm-up steps, at
    most total - 1. The peak is at step W; the step after the last would have rate 0.
    """
    if not 0 <= step < total:
        raise ValueError(f"step {step} is not one of {total} steps")
    warmup_steps = min(round(warmup * total), total - 1)
    return min((step + 1) / (warmup_steps + 1), (total - step) / (total - warmup_steps))


def scaled_rate(lr: float, batch_size: int, rule: Literal["none", "sqrt", "linear"]) -> float:
    """Return the rate at `batch_size`, where `lr` is the rate at batch size 32 unless the rule is none."""
    growth = batch_size / REFERENCE_BATCH
    factors = {"none": 1.0, "sqrt": math.sqrt(growth), "linear": growth}
    if rule not in factors:
        raise ValueError(f"unknown scaling rule {rule!r}: none, sqrt or linear")
    return lr * factors[rule]


def default_rate(optimizer: str, hidden_size: int, batch_size: int) -> float:
    """Return a sound peak rate: BASE_RATE * sqrt(B / 32) * (384 / width)^exponent."""
    ratio = REFERENCE_WIDTH / hidden_size
    exponent = NARROWER_EXPONENT[optimizer] if ratio > 1 else WIDER_EXPONENT
    return scaled_rate(BASE_RATE[optimizer], batch_size, "sqrt") * ratio**exponent
