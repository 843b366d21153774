"""Parameter groups: which parameters share a rate and which take weight decay; and the base class of Lamb and Ngd."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

BLOCK = re.compile(r"^(.*?\.\d+)\.")
"""The start of a parameter's name up to its first number: `bert.encoder.layer.0`."""


def parameter_groups(
    model: nn.Module, weight_decay: float, groups: Literal["tensor", "layer"], adapt_all: bool, optimizer: str
) -> list[dict[str, Any]]:
    """Return the groups of the trainable parameters for an optimizer, in the order of `model.named_parameters()`.

    Biases and normalisation weights never decay. What shares a rate for `groups`, with layers as in `layer_names`:

    | optimizer | tensor | layer |
    |---|---|---|
    | adamw | no rates to share | the same |
    | lamb | each matrix its own; biases and norms not adapted | one per layer over its matrices |
    | lamb, adapt_all | each tensor its own | one per layer over everything in it |
    | ngd | each tensor its own | one per layer over everything in it |
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    undecayed = undecayed_names(model)
    without_decay = [param for name, param in named if name in undecayed]
    if optimizer == "adamw" or groups == "tensor":
        with_decay = [param for name, param in named if name not in undecayed]
        decay: dict[str, Any] = {"name": "decay", "params": with_decay, "weight_decay": weight_decay}
        rest: dict[str, Any] = {"name": "no decay", "params": without_decay, "weight_decay": 0.0}
        if optimizer == "lamb":
            decay["adapt"], rest["adapt"] = True, adapt_all
        if optimizer == "ngd":
            decay["joint"] = rest["joint"] = False
        return [group for group in (decay, rest) if group["params"]]
    unadapted = undecayed if optimizer == "lamb" and not adapt_all else set()
    layers = layer_names(model)
    by_layer: dict[str, dict[str, Any]] = {}
    for name, param in named:
        if name not in unadapted:
            new = {"name": layers[name], "params": [], "decayed": [], "weight_decay": weight_decay, "joint": True}
            group = by_layer.setdefault(layers[name], new)
            group["params"].append(param)
            group["decayed"].append(name not in undecayed)
    result = list(by_layer.values())
    if unadapted and without_decay:
        result.append({"name": "biases and norms", "params": without_decay, "weight_decay": 0.0, "adapt": False})
    return result


def undecayed_names(model: nn.Module) -> set[str]:
    """Return the names of biases, of the weights of LayerNorm and RMSNorm modules, and of other vectors."""
    return {
        name
        for prefix, module in model.named_modules()
        for name, param in module.named_parameters(prefix, recurse=False)
        if param.ndim <= 1 or name.endswith("bias") or _is_norm(module)
    }


def _is_norm(module: nn.Module) -> bool:
    rms = getattr(torch.nn, "RMSNorm", nn.LayerNorm)
    return isinstance(module, (nn.LayerNorm, rms)) or type(module).__name__.endswith(("LayerNorm", "RMSNorm"))


def layer_names(model: nn.Module) -> dict[str, str]:
    """Return the layer of each parameter: its numbered block, or `embeddings` before the first and `head` after it."""
    layers: dict[str, str] = {}
    outside = "embeddings"
    for name, _ in model.named_parameters():
        block = BLOCK.match(name)
        if block:
            outside = "head"
        layers[name] = block.group(1) if block else outside
    return layers


class GroupwiseOptimizer(torch.optim.Optimizer, ABC):
    """Base of Lamb and Ngd: updates group after group, scaled by nu(||w||) with nu(c) = max(low, min(c, high))."""

    def __init__(
        self, params: Iterable[Any], lr: float, weight_decay: float, low: float, high: float, **defaults: Any
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr must be at least 0, not {lr}")
        if not 0 <= low <= high:
            raise ValueError(f"weight norm limits must satisfy 0 <= min <= max, not min {low} and max {high}")
        limits = {"min_weight_norm": low, "max_weight_norm": high}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **limits, "decayed": None, **defaults})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking that it has one device, one dtype and one decay mark per tensor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        kinds = {(param.device, param.dtype) for param in group["params"]}
        if len(kinds) > 1:
            raise ValueError(
                f"tensors of one parameter group must share a device and a dtype, found {sorted(map(str, kinds))}"
            )
        if group["decayed"] is not None and len(group["decayed"]) != len(group["params"]):
            raise ValueError(f"`decayed` has {len(group['decayed'])} entries for {len(group['params'])} tensors")

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
        """Update the tensors of a group that have a gradient."""


def group_norms(tensors: Sequence[Tensor], joint: bool) -> Tensor:
    """Return the L2 norms as a vector: one entry per tensor, or a single one over their concatenation."""
    norms = torch.stack(torch._foreach_norm(list(tensors)))
    return torch.linalg.vector_norm(norms).reshape(1) if joint else norms


def add_scaled(params: list[Tensor], updates: list[Tensor], factors: Tensor) -> None:
    """Add factor * update to each parameter, in one pass without a temporary; a single factor serves all of them."""
    torch._foreach_addcmul_(params, updates, list(factors.expand(len(params)).unbind()))


def decay_mask(group: dict[str, Any], params: list[Tensor]) -> list[bool]:
    """Return which of a group's parameters take weight decay."""
    if group["decayed"] is None:
        return [True] * len(params)
    marks = {id(param): mark for param, mark in zip(group["params"], group["decayed"], strict=True)}
    return [marks[id(param)] for param in params]
