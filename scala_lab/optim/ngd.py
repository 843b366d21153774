r"""Normalized gradient descent with group-wise rates: the update in ScaLA's theorem.

For the tensors x_i of one group with gradient g_i:

    x_i = x_i - lr * nu(||x_i||) * g_i / ||g_i||,    nu(c) = max(L, min(c, U))

The norms run over the group's concatenation if `joint`, which makes a group a layer. There are no moments. A group
whose gradient is 0 does not move; nor does one whose weights are all 0 unless L > 0, as printed in the paper's
Algorithm 1. Weight decay, which the paper's update does not have, is decoupled as in AdamW.
"""

from collections.abc import Iterable
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from scala_lab.optim.lamb import GroupwiseOptimizer, add_scaled, decay_mask, group_norms


class Ngd(GroupwiseOptimizer):
    """Normalized gradient descent; the module's docstring has the formula.

    Tensors of a parameter group share a device and a dtype. A group may set `joint` (default True: one norm over all
    its tensors) and `decayed` (default None: one bool per tensor; tensors marked False take no weight decay).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        max_weight_norm: float = 10.0,
        min_weight_norm: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, min_weight_norm, max_weight_norm, joint=True)

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Move the tensors of a group."""
        grads = [param.grad for param in params if param.grad is not None]
        gradient_norms, weight_norms = group_norms(grads, group["joint"]), group_norms(params, group["joint"])
        factors = weight_norms.clamp_(group["min_weight_norm"], group["max_weight_norm"]).div_(gradient_norms)
        factors = torch.where(gradient_norms > 0, factors, 0.0)
        if group["weight_decay"]:
            decayed = list(compress(params, decay_mask(group, params)))
            torch._foreach_mul_(decayed, 1 - group["lr"] * group["weight_decay"])
        add_scaled(params, grads, factors.mul_(-group["lr"]))
