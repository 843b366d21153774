"""What Lamb and Ngd are: optimizers that update one checked parameter group after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scala_lab.optim.weight_norms import check_group


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
