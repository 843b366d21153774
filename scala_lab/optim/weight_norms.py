"""What Lamb and Ngd share: norms of groups of tensors, and moves scaled by them, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def check_norm_limits(min_weight_norm: float, max_weight_norm: float) -> None:
    """Refuse limits of nu(c) = max(L, min(c, U)) that contradict each other."""
    if not 0 <= min_weight_norm <= max_weight_norm:
        raise ValueError(
            f"weight norm limits must satisfy 0 <= min <= max, not min {min_weight_norm} and max {max_weight_norm}"
        )


def check_group(group: dict[str, Any]) -> None:
    """Refuse a parameter group whose tensors differ in device or dtype, or whose decay marks do not fit."""
    kinds = {(param.device, param.dtype) for param in group["params"]}
    if len(kinds) > 1:
        raise ValueError(
            f"tensors of one parameter group must share a device and a dtype, found {sorted(map(str, kinds))}"
        )
    if group["decayed"] is not None and len(group["decayed"]) != len(group["params"]):
        raise ValueError(f"`decayed` has {len(group['decayed'])} entries for {len(group['params'])} tensors")


def group_norms(tensors: Sequence[Tensor], joint: bool) -> Tensor:
    """L2 norms as a vector: one entry per tensor, or a single one over their concatenation."""
    norms = torch.stack(torch._foreach_norm(list(tensors)))
    return torch.linalg.vector_norm(norms).reshape(1) if joint else norms


def per_tensor(factors: Tensor, count: int) -> list[Tensor]:
    """A vector of factors as `count` scalars, a single one repeated."""
    return list(factors.expand(count).unbind())


def add_scaled(params: list[Tensor], updates: list[Tensor], factors: list[Tensor]) -> None:
    """Add factor * update to each parameter, in one pass and without a temporary."""
    torch._foreach_addcmul_(params, updates, factors)


def decayed_pairs(
    group: dict[str, Any], params: list[Tensor], others: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Those of `others`, and of `params` beside them, whose parameter takes weight decay."""
    if group["decayed"] is None:
        return list(others), params
    marks = {id(param): mark for param, mark in zip(group["params"], group["decayed"], strict=True)}
    pairs = [(other, param) for other, param in zip(others, params, strict=True) if marks[id(param)]]
    return [other for other, _ in pairs], [param for _, param in pairs]
