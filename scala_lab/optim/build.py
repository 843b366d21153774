"""From a spec to an optimizer, and the rate it starts from when none is given."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from scala_lab.optim.schedule import scaled_rate

if TYPE_CHECKING:
    import torch

    from scala_lab.spec import OptimSpec

BASE_RATE: Mapping[str, float] = MappingProxyType({"adamw": 1.77e-4, "lamb": 1.77e-3, "ngd": 1.77e-3})
"""Peak rate at batch size 32 for an encoder of width 384: 1e-3 for adamw and 1e-2 for the others at 1024."""

REFERENCE_WIDTH = 384
"""The encoder width that BASE_RATE belongs to."""

WIDER_EXPONENT: Mapping[str, float] = MappingProxyType({"adamw": 2.0, "lamb": 2.0, "ngd": 2.0})
"""How fast the rate falls as the encoder gets wider than REFERENCE_WIDTH: 4.4e-5 for adamw at BERT-base's 768."""

NARROWER_EXPONENT: Mapping[str, float] = MappingProxyType({"adamw": 0.6, "lamb": 0.0, "ngd": 0.0})
"""How fast it rises as the encoder gets narrower: 3e-3 for adamw at the embedded encoder's 64 and batch size 1024.
The others move in proportion to the weights, whatever their number."""


def default_rate(optimizer: str, hidden_size: int, batch_size: int) -> float:
    """A sound peak rate: BASE * sqrt(B / 32) * (384 / width)^exponent, with one exponent per side of the reference."""
    ratio = REFERENCE_WIDTH / hidden_size
    exponent = (NARROWER_EXPONENT if ratio > 1 else WIDER_EXPONENT)[optimizer]
    return scaled_rate(BASE_RATE[optimizer], batch_size, "sqrt") * ratio**exponent


def build_optimizer(model: torch.nn.Module, spec: OptimSpec, lr: float) -> torch.optim.Optimizer:
    """The optimizer a resolved spec names, over the model's trainable parameters.

    Args:
        model: Already on its device and in its dtype.
        spec: With `optimizer`, `eps` and `groups` filled in, as `RunSpec.resolved` does.
        lr: Peak rate.
    """
    import torch

    from scala_lab.optim.groups import parameter_groups
    from scala_lab.optim.lamb import Lamb
    from scala_lab.optim.ngd import Ngd

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
