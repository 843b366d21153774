"""How the learning rate moves: warm-up and linear decay over the steps, and growth with the batch size."""

from __future__ import annotations

import math
from typing import Literal

REFERENCE_BATCH = 32
"""The batch size at which rates are quoted."""


def rate_factor(step: int, total: int, warmup: float) -> float:
    """The share of the peak rate at a 0-based step: linear up to 1, then linear down, never 0.

    min((step + 1) / (W + 1), (total - step) / (total - W)) with W = round(warmup * total) warm-up steps, at
    most total - 1. The peak is at step W; the step after the last would have rate 0.
    """
    if not 0 <= step < total:
        raise ValueError(f"step {step} is not one of {total} steps")
    rising = min(round(warmup * total), total - 1)
    return min((step + 1) / (rising + 1), (total - step) / (total - rising))


def scaled_rate(lr: float, batch_size: int, rule: Literal["none", "sqrt", "linear"]) -> float:
    """The rate at `batch_size`, where `lr` is the rate at batch size 32 unless the rule is none."""
    growth = batch_size / REFERENCE_BATCH
    if rule == "none":
        return lr
    if rule == "sqrt":
        return lr * math.sqrt(growth)
    if rule == "linear":
        return lr * growth
    raise ValueError(f"unknown scaling rule {rule!r}: none, sqrt or linear")
