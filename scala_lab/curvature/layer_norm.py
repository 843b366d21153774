"""LayerNorm with its second derivative written out.

With x^ = (x - mean) r the normalised inputs, r = 1 / sqrt(variance + eps), and P(u) = r (u - mean(u) - x^ mean(u x^)),
which is symmetric, the gradient g by the outputs becomes P(g w) by the inputs, sum(g x^) by the weight w and sum(g) by
the bias. A product sends vectors u, s, t for these three, and what they do to g, x and w is

    to g   w P(u) + s x^ + t
    to x   P(q) - r^2 x^ (mean(u a) - mean(u) mean(a) - mean(u x^) mean(a x^)),   a = g w,
           q = s g - r (u mean(a x^) + a mean(u x^))
    to w   sum(g P(u))

torch composes the same of some thirty passes over the tokens. P is its own kernel for the first derivative, and all
that does not depend on u, s and t is kept with the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class LayerNorm(Function):
    """Normalise the last axis, then times weight, plus bias."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """The normalised tokens."""
        outputs, mean, rate = torch.native_layer_norm(inputs, [inputs.shape[-1]], weight, bias, eps)
        ctx.save_for_backward(inputs, mean, rate, weight, bias)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """The derivatives by inputs, weight and bias."""
        (grad,) = grads
        inputs, mean, rate, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            by_inputs, by_weight, by_bias = _LayerNormGradient.apply(grad, inputs, weight, mean, rate)
        else:
            shape, wanted = [inputs.shape[-1]], [True, True, True]
            by_inputs, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
                grad, inputs, shape, mean, rate, weight, bias, wanted
            )
        return by_inputs, by_weight, by_bias, None


class _LayerNormGradient(Function):
    """The derivatives of a LayerNorm by inputs, weight and bias, for a gradient by its outputs."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, inputs: Tensor, weight: Tensor, mean: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows = tuple(range(grad.ndim - 1))
        normal, scaled = (inputs - mean) * rate, grad * weight
        along = (scaled * normal).mean(-1, keepdim=True)
        ctx.save_for_backward(grad, inputs, weight, mean, rate, normal, scaled, along)
        return _project(scaled, inputs, mean, rate), (grad * normal).sum(rows), grad.sum(rows)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor | None) -> Any:
        by_inputs, by_weight, by_bias = vectors
        grad, inputs, weight, mean, rate, normal, scaled, along = ctx.saved_tensors
        to_grad = torch.zeros_like(grad) if by_weight is None else normal * by_weight
        turned = torch.zeros_like(grad) if by_weight is None else grad * by_weight
        if by_bias is not None:
            to_grad += by_bias
        if by_inputs is None:
            return to_grad, _project(turned, inputs, mean, rate), None, None, None
        pulled = _project(by_inputs, inputs, mean, rate)
        to_grad.addcmul_(pulled, weight)
        to_weight = (grad * pulled).sum(tuple(range(grad.ndim - 1)))
        by_along = (by_inputs * normal).mean(-1, keepdim=True)
        turned.addcmul_(by_inputs, along * rate, value=-1).addcmul_(scaled, by_along.mul_(rate), value=-1)
        # mean(u a) - mean(u) mean(a) - mean(u x^) mean(a x^) = mean(a P(u)) / r
        bent = (scaled * pulled).mean(-1, keepdim=True).mul_(rate)
        return to_grad, _project(turned, inputs, mean, rate).addcmul_(normal, bent, value=-1), to_weight, None, None


def _project(vector: Tensor, inputs: Tensor, mean: Tensor, rate: Tensor) -> Tensor:
    """P of a vector for each token."""
    shape, wanted = [inputs.shape[-1]], [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(vector, inputs, shape, mean, rate, None, None, wanted)[0]
