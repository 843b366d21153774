"""GELU whose derivatives are computed once, not in every product.

A product passes each activation twice, and needs its first and second derivative at inputs that never change. torch
saves the inputs and computes both anew, in a dozen passes over the widest tensors of the model. Here the graph of a
gradient keeps the two derivatives, and a product multiplies by them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


class Gelu(Function):
    """x times the share of a normal distribution below x."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        """The activation."""
        ctx.save_for_backward(inputs)
        ctx.slope = None
        return functional.gelu(inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The derivative by the inputs; in a pass that builds a graph, the slope is kept for later ones."""
        (grad,) = grads
        (inputs,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.slope = torch.ops.aten.gelu_backward(torch.ones_like(inputs), inputs.detach())
            return _GeluGradient.apply(grad, inputs, ctx.slope)
        return grad * ctx.slope if ctx.slope is not None else torch.ops.aten.gelu_backward(grad, inputs)


class _GeluGradient(Function):
    """The gradient times the slope, with the derivatives of that by gradient and inputs."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, inputs: Tensor, slope: Tensor) -> Tensor:
        bend = (2 - inputs.square()).mul_(torch.exp(-0.5 * inputs.square())).mul_(1 / math.sqrt(2 * math.pi))
        ctx.save_for_backward(slope, bend.mul_(grad))
        return grad * slope

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor) -> Any:
        (vector,) = vectors
        slope, bend = ctx.saved_tensors
        return vector * slope, vector * bend, None
