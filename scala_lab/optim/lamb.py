r"""LAMB: Adam's update direction, scaled group by group to the size of the weights.

For a tensor w with gradient g, after t steps:

    m = b1*m + (1-b1)*g               m_hat = m / (1 - b1^t)
    v = b2*v + (1-b2)*g^2             v_hat = v / (1 - b2^t)
    u = m_hat / (sqrt(v_hat) + eps) + wd*w
    w = w - lr * ratio * u            ratio = nu(||w||) / ||u||,   nu(c) = max(L, min(c, U))

with ratio = 1 where ||w|| or ||u|| is 0. L is `min_weight_norm`, U is `max_weight_norm`.

Provenance: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020,
Algorithm 2. Implementations differ; the choices here:

- Bias correction is part of u, before its norm is taken, as in apex and timm; pytorch-optimizer takes the ratio
  over the uncorrected moments and adds eps to ||u||.
- nu clips the weight norm, as in pytorch-optimizer (at 10); timm can clip the ratio (at 1) instead, apex neither.
- The gradient is not clipped; apex and timm by default first scale it to a global norm of at most 1.
- The parameter group says whether a tensor is adapted (`adapt`); apex and timm infer it from weight decay.
- Bias correction counts the steps of each tensor, not of its group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor


class GroupwiseOptimizer(torch.optim.Optimizer, ABC):
    """Base of Lamb and Ngd, which scale updates by nu(||w||), nu(c) = max(low, min(c, high))."""

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
        kinds = sorted({str((param.device, param.dtype)) for param in group["params"]})
        if len(kinds) > 1:
            raise ValueError(f"tensors of one parameter group must share a device and a dtype, found {kinds}")
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


class Lamb(GroupwiseOptimizer):
    """LAMB with a clipped weight norm; the module's docstring has the formula.

    Tensors of a parameter group share a device and a dtype. A group may also set:

    - `adapt` (default True): False makes ratio = 1, which is bias-corrected AdamW.
    - `joint` (default False): True gives all tensors of the group one ratio, with norms over their
      concatenation, as the ScaLA paper's per-layer rates; False gives each tensor its own.
    - `decayed` (default None): one bool per tensor; tensors marked False take no weight decay.

    A step needs one temporary of the size of the largest group and does not synchronise with the device.
    `max_weight_norm` may be `inf`, for no clip.
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
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), not {betas}")
        if not eps >= 0:
            raise ValueError(f"eps must be at least 0, not {eps}")
        self._pending: Tensor | None = None  # counts of clipped and adapted ratios, still on the device
        self._scratch: Tensor | None = None  # see `_zeros_like`
        # `fused` makes torch load a saved step count to where the fused kernel reads it
        options = {"betas": betas, "eps": eps, "adapt": True, "joint": False, "fused": True}
        super().__init__(params, lr, weight_decay, min_weight_norm, max_weight_norm, **options)

    def update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Move the tensors of a group."""
        updates = self._directions(group, params)
        if not group["adapt"]:
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            return
        add_scaled(params, updates, self._ratios(group, params, updates).mul_(-group["lr"]))

    def _directions(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """Advance the moments in place and return u, the step's only temporary."""
        states = [self._state_of(param) for param in params]
        m, v, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        grads = [_in_layout_of(param, param.grad) for param in params if param.grad is not None]
        updates = self._zeros_like(params)
        torch._foreach_add_(steps, 1)
        # a step of AdamW's fused kernel from 0 with rate -1 gives m_hat / (sqrt(v_hat) + eps) in one pass over memory
        (beta1, beta2), eps = group["betas"], group["eps"]
        fixed: dict[str, Any] = {"lr": -1.0, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
        torch._fused_adamw_(updates, grads, m, v, [], steps, beta1=beta1, beta2=beta2, eps=eps, **fixed)
        if group["weight_decay"]:
            mask = decay_mask(group, params)
            decayed = list(compress(params, mask))
            torch._foreach_add_(list(compress(updates, mask)), decayed, alpha=group["weight_decay"])
        return updates

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        """Return the step count and moments of a parameter, 0 at first."""
        state = self.state[param]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            if state["exp_avg"].stride() != param.stride():
                raise RuntimeError(f"Lamb takes parameters that fill their memory, not strides {param.stride()}")
        return state

    def _zeros_like(self, params: list[Tensor]) -> list[Tensor]:
        """Return zeros in the shapes and layouts of the parameters.

        On the CPU their memory is reused from step to step, as CUDA's caching allocator does: fresh pages cost more
        than the whole update.
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
        """Return nu(||w||) / ||u||, a vector over the tensors (one entry if joint), and count the clips."""
        weight_norms, update_norms = group_norms(params, group["joint"]), group_norms(updates, group["joint"])
        clipped_norms = weight_norms.clamp(group["min_weight_norm"], group["max_weight_norm"])
        usable = (weight_norms > 0) & (update_norms > 0)
        counts = torch.stack([((clipped_norms != weight_norms) & usable).sum(), usable.sum()])
        self._pending = counts if self._pending is None else self._pending.add_(counts.to(self._pending.device))
        return torch.where(usable, clipped_norms / update_norms, 1.0)

    def clip_counts(self) -> dict[str, int]:
        """Return how many ratios were adapted so far, and for how many of them nu clipped; synchronises the device."""
        state = self.state[self.param_groups[0]["params"][0]]
        clipped, adapted = (0, 0) if self._pending is None else self._pending.tolist()
        self._pending = None
        state["clipped"] = state.get("clipped", 0) + clipped
        state["adapted"] = state.get("adapted", 0) + adapted
        return {name: state[name] for name in ("clipped", "adapted")}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the clip counts as numbers in the state of the first parameter."""
        self.clip_counts()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self.clip_counts()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._pending = self._scratch = None
        super().__setstate__(state)


def _in_layout_of(param: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient in the memory layout of its parameter, which the fused kernel assumes."""
    if gradient.is_sparse:
        raise RuntimeError("Lamb takes dense gradients only")
    return gradient if gradient.stride() == param.stride() else torch.empty_like(param).copy_(gradient)


def group_norms(tensors: Sequence[Tensor], joint: bool) -> Tensor:
    """Return the L2 norms as a vector: one entry per tensor, or a single one over their concatenation."""
    norms = torch.stack(torch._foreach_norm(list(tensors)))
    return torch.linalg.vector_norm(norms).reshape(1) if joint else norms


def add_scaled(params: list[Tensor], updates: list[Tensor], factors: Tensor) -> None:
    """Add factor * update to each parameter in one pass; a single factor is broadcast."""
    torch._foreach_addcmul_(params, updates, list(factors.expand(len(params)).unbind()))


def decay_mask(group: dict[str, Any], params: list[Tensor]) -> list[bool]:
    """Return which of a group's parameters take weight decay."""
    if group["decayed"] is None:
        return [True] * len(params)
    marks = {id(param): mark for param, mark in zip(group["params"], group["decayed"], strict=True)}
    return [marks[id(param)] for param in params]
