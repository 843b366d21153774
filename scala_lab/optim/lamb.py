r"""LAMB: Adam's update direction, scaled group by group to the size of the weights.

For a tensor w with gradient g, after t steps:

    m = b1*m + (1-b1)*g               m_hat = m / (1 - b1^t)
    v = b2*v + (1-b2)*g^2             v_hat = v / (1 - b2^t)
    u = m_hat / (sqrt(v_hat) + eps) + wd*w
    w = w - lr * ratio * u            ratio = nu(||w||) / ||u||,   nu(c) = max(L, min(c, U))

with ratio = 1 where ||w|| or ||u|| is 0. L is `min_weight_norm`, U is `max_weight_norm`.

Provenance: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020,
Algorithm 2. Implementations differ from one another; this one stands so:

- Bias correction is inside u, before its norm is taken, as in apex and timm; pytorch-optimizer takes the ratio
  over the uncorrected moments and adds eps to ||u||.
- nu clips the weight norm, as the paper's phi may, and pytorch-optimizer does (at 10); timm can clip the ratio
  (at 1) instead, apex clips neither.
- The gradient is taken as it comes; apex and timm first scale it to a global norm of at most 1 unless told not to.
- Whether a tensor is adapted is said by its parameter group (`adapt`); apex and timm infer it from weight decay.
- The steps that bias correction counts are a tensor's own, not its group's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from scala_lab.optim.groups import (
    GroupwiseOptimizer,
    add_scaled,
    check_norm_limits,
    decayed_pairs,
    group_norms,
    per_tensor,
)


class Lamb(GroupwiseOptimizer):
    """LAMB with a clipped weight norm; the module's docstring has the formula.

    A parameter group may also carry:

    - `adapt` (default True): False makes ratio = 1, which leaves bias-corrected AdamW.
    - `joint` (default False): True gives all tensors of the group one ratio, with norms over their
      concatenation, as the ScaLA paper's per-layer rates; False gives each tensor its own.
    - `decayed` (default None): one bool per tensor; tensors marked False take no weight decay.

    A step needs one temporary of the size of the largest group and never waits for the device.

    Args:
        params: Parameters or parameter groups; tensors of one group share a device and a dtype.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decay, inside the update direction.
        max_weight_norm: U; `inf` for no clip.
        min_weight_norm: L.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_weight_norm: float = 10.0,
        min_weight_norm: float = 0.0,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr must be at least 0, not {lr}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), not {betas}")
        if not eps >= 0:
            raise ValueError(f"eps must be at least 0, not {eps}")
        check_norm_limits(min_weight_norm, max_weight_norm)
        self._pending: Tensor | None = None
        self._scratch: Tensor | None = None
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_weight_norm": max_weight_norm,
            "min_weight_norm": min_weight_norm,
            "adapt": True,
            "joint": False,
            "decayed": None,
            "fused": True,  # tells the base class to put a restored step count where the fused kernel reads it
        }
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Move the tensors of a group."""
        updates = self._directions(group, params)
        if not group["adapt"]:
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            return
        ratios = self._ratios(group, params, updates)
        add_scaled(params, updates, per_tensor(ratios.mul_(-group["lr"]), len(params)))

    def _directions(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """Advance the moments in place and return u, the step's only temporary."""
        states = [self._state_of(param) for param in params]
        steps = [state["step"] for state in states]
        updates = self._zeros_like(params)
        torch._foreach_add_(steps, 1)
        # AdamW's fused kernel, stepping by -1 from 0, leaves m_hat / (sqrt(v_hat) + eps): one pass over memory
        torch._fused_adamw_(
            updates,
            [_laid_out_as(param.grad, param) for param in params if param.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=-1.0,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        if group["weight_decay"]:
            some_updates, some_params = decayed_pairs(group, params, updates)
            torch._foreach_add_(some_updates, some_params, alpha=group["weight_decay"])
        return updates

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        """The step count and moments of a parameter, zero at first."""
        state = self.state[param]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            if state["exp_avg"].stride() != param.stride():
                raise RuntimeError(f"Lamb takes parameters that fill their memory, not strides {param.stride()}")
        return state

    def _zeros_like(self, params: list[Tensor]) -> list[Tensor]:
        """Zeros in the shapes and layouts of the parameters.

        On the CPU their memory is kept from step to step: fresh pages cost more than the whole update. On CUDA
        the caching allocator sees to that, and the memory serves the activations in between.
        """
        if params[0].device.type != "cpu":
            return [torch.zeros_like(param, memory_format=torch.preserve_format) for param in params]
        sizes = [param.numel() for param in params]
        if self._scratch is None or self._scratch.numel() < sum(sizes) or self._scratch.dtype != params[0].dtype:
            self._scratch = torch.empty(sum(sizes), dtype=params[0].dtype)
        parts = self._scratch[: sum(sizes)].zero_().split(sizes)
        return [
            part.as_strided(param.shape, param.stride(), part.storage_offset())
            for part, param in zip(parts, params, strict=True)
        ]

    def _ratios(self, group: dict[str, Any], params: list[Tensor], updates: list[Tensor]) -> Tensor:
        """nu(||w||) / ||u||, a vector over the tensors (one entry if joint), and the count of clips."""
        weight_norms, update_norms = group_norms(params, group["joint"]), group_norms(updates, group["joint"])
        clipped_norms = weight_norms.clamp(group["min_weight_norm"], group["max_weight_norm"])
        usable = (weight_norms > 0) & (update_norms > 0)
        counts = torch.stack([((clipped_norms != weight_norms) & usable).sum(), usable.sum()])
        self._pending = counts if self._pending is None else self._pending.add_(counts.to(self._pending.device))
        return torch.where(usable, clipped_norms / update_norms, 1.0)

    def clip_counts(self) -> dict[str, int]:
        """How many ratios were adapted so far, and for how many of them nu clipped the weight norm.

        The count stays on the device during steps; asking waits for it. It is part of the state.
        """
        state = self.state[self.param_groups[0]["params"][0]]
        clipped, adapted = state.get("clipped", 0), state.get("adapted", 0)
        if self._pending is not None:
            new_clipped, new_adapted = self._pending.tolist()
            clipped, adapted = clipped + new_clipped, adapted + new_adapted
            self._pending = None
        state["clipped"], state["adapted"] = clipped, adapted
        return {"clipped": clipped, "adapted": adapted}

    def state_dict(self) -> dict[str, Any]:
        """The state with the clip counts settled into it, on the first parameter, as plain numbers."""
        self.clip_counts()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore moments, steps and clip counts."""
        self._pending = None
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self.clip_counts()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._pending = None
        self._scratch = None
        super().__setstate__(state)


def _laid_out_as(gradient: Tensor, param: Tensor) -> Tensor:
    """The gradient in the memory layout of its parameter, which the fused kernel takes for granted."""
    if gradient.is_sparse:
        raise RuntimeError("Lamb takes dense gradients only")
    return gradient if gradient.stride() == param.stride() else torch.empty_like(param).copy_(gradient)


__all__ = ["Lamb"]
