"""All gradients in one flat buffer, with the step's statistics at its end: one message per step carries both."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from scala_lab.methods.step import STATISTICS


class GradientBuffer:
    """A flat tensor whose slices are the parameters' `.grad`.

    Micro-batches add into it in place, the all-reduce sums it over workers in one call, and the gradient's
    norm is one reduction. The last entries hold the sums of `STATISTICS`, so they cost no message of their own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        first = self.parameters[0]
        size = sum(parameter.numel() for parameter in self.parameters)
        self.flat = torch.zeros(size + len(STATISTICS), dtype=first.dtype, device=first.device)
        self.gradients = self.flat[:size]
        self._statistics = self.flat[size:]
        start = 0
        for parameter in self.parameters:
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def clear(self) -> None:
        """Start a new step."""
        self.flat.zero_()

    def count(self, statistics: Tensor) -> None:
        """Add a micro-batch's statistics."""
        self._statistics += statistics.to(self._statistics)

    def statistics(self) -> dict[str, float]:
        """The sums over all samples of the step, by name."""
        return dict(zip(STATISTICS, self._statistics.tolist(), strict=True))

    def clip(self, most: float) -> float:
        """The gradient's norm; when `most` is positive and smaller, the gradient is scaled down to it.

        The factor is that of torch.nn.utils.clip_grad_norm_.
        """
        norm = float(self.gradients.norm())
        if 0 < most < norm + 1e-6:
            self.gradients.mul_(most / (norm + 1e-6))
        return norm
