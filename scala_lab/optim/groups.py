"""Which parameters share a rate, which take weight decay, and the loop over groups that Lamb and Ngd share.

Which parameters share a rate, and which take weight decay.

What Lamb and Ngd share: norms of groups of tensors, and moves scaled by them, without waiting for the device.

What Lamb and Ngd are: optimizers that update one checked parameter group after another.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

BLOCK = re.compile(r"^(.*?\.\d+)\.")
"""The start of a parameter's name up to its first number: `bert.encoder.layer.0`."""


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    groups: Literal["tensor", "layer"],
    adapt_all: bool,
    optimizer: str,
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, in the order of `model.named_parameters()`.

    Biases and normalisation weights never decay. What shares a rate:

    | optimizer | tensor | layer |
    |---|---|---|
    | adamw | no rates to share | the same |
    | lamb | each matrix its own; biases and norms not adapted | one per layer over its matrices |
    | lamb, adapt_all | each tensor its own | one per layer over everything in it |
    | ngd | each tensor its own | one per layer over everything in it |

    A layer is a numbered block; what comes before the first is `embeddings`, after the last `head`.

    Args:
        model: Parameters without requires_grad are left out.
        weight_decay: Decay of the parameters that take it.
        groups: Share a rate within a tensor or a layer.
        adapt_all: lamb only: adapt biases and normalisation weights too.
        optimizer: adamw, lamb or ngd.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    undecayed = undecayed_names(model)
    if optimizer == "adamw" or groups == "tensor":
        found = _two_groups(named, undecayed, weight_decay)
        for group in found:
            if optimizer == "lamb":
                group["adapt"] = adapt_all or group["name"] == "decay"
            if optimizer == "ngd":
                group["joint"] = False
        return found
    apart = undecayed if optimizer == "lamb" and not adapt_all else set()
    found = _layer_groups([item for item in named if item[0] not in apart], layer_names(model), undecayed, weight_decay)
    left = [param for name, param in named if name in apart]
    if left:
        found.append({"name": "biases and norms", "params": left, "weight_decay": 0.0, "adapt": False})
    return found


def _two_groups(
    named: list[tuple[str, nn.Parameter]], undecayed: set[str], weight_decay: float
) -> list[dict[str, Any]]:
    """What decays, and what does not; a group without parameters is left out."""
    decay = {"name": "decay", "params": [p for n, p in named if n not in undecayed], "weight_decay": weight_decay}
    rest = {"name": "no decay", "params": [p for n, p in named if n in undecayed], "weight_decay": 0.0}
    return [group for group in (decay, rest) if group["params"]]


def _layer_groups(
    named: list[tuple[str, nn.Parameter]], layers: dict[str, str], undecayed: set[str], weight_decay: float
) -> list[dict[str, Any]]:
    """One joint group per layer, with a mark on each tensor that decays."""
    found: dict[str, dict[str, Any]] = {}
    for name, param in named:
        layer = layers[name]
        group = found.setdefault(
            layer, {"name": layer, "params": [], "decayed": [], "weight_decay": weight_decay, "joint": True}
        )
        group["params"].append(param)
        group["decayed"].append(name not in undecayed)
    return list(found.values())


def undecayed_names(model: nn.Module) -> set[str]:
    """Names of biases, of the weights of LayerNorm and RMSNorm modules, and of other vectors."""
    found = set()
    for prefix, module in model.named_modules():
        for name, param in module.named_parameters(prefix, recurse=False):
            if param.ndim <= 1 or name.endswith("bias") or _normalises(module):
                found.add(name)
    return found


def _normalises(module: nn.Module) -> bool:
    rms = getattr(torch.nn, "RMSNorm", nn.LayerNorm)
    return isinstance(module, (nn.LayerNorm, rms)) or type(module).__name__.endswith(("LayerNorm", "RMSNorm"))


def layer_names(model: nn.Module) -> dict[str, str]:
    """The layer of each parameter: its numbered block, or `embeddings` before the first and `head` after it."""
    found: dict[str, str] = {}
    outside = "embeddings"
    for name, _ in model.named_parameters():
        block = BLOCK.match(name)
        if block:
            outside = "head"
        found[name] = block.group(1) if block else outside
    return found


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


class GroupwiseOptimizer(torch.optim.Optimizer, ABC):
    """Calls `update` for every group that has gradients."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked: one device, one dtype, one decay mark per tensor."""
        super().add_param_group(param_group)
        check_group(self.param_groups[-1])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self.update(group, params)
        return loss

    @abstractmethod
    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Update those tensors of a group that have a gradient."""
