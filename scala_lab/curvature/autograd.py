"""Layers with their second derivatives written out: linear, GELU and LayerNorm.

GELU whose derivatives are computed once, not in every product.

A product passes each activation twice, and needs its first and second derivative at inputs that never change. torch
saves the inputs and computes both anew, in a dozen passes over the widest tensors of the model. Here the graph of a
gradient keeps the two derivatives, and a product multiplies by them.

LayerNorm with its second derivative written out.

With x^ = (x - mean) r the normalised inputs, r = 1 / sqrt(variance + eps), and P(u) = r (u - mean(u) - x^ mean(u x^)),
which is symmetric, the gradient g by the outputs becomes P(g w) by the inputs, sum(g x^) by the weight w and sum(g) by
the bias. A product sends vectors u, s, t for these three, and what they do to g, x and w is

    to g   w P(u) + s x^ + t
    to x   P(q) - r^2 x^ (mean(u a) - mean(u) mean(a) - mean(u x^) mean(a x^)),   a = g w,
           q = s g - r (u mean(a x^) + a mean(u x^))
    to w   sum(g P(u))

torch composes the same of some thirty passes over the tokens. P is its own kernel for the first derivative, and all
that does not depend on u, s and t is kept with the graph.

Linear layers that add their share of a product where it belongs.

Most of a Hessian product is linear layers. For a layer y = x W^T + b and the gradient g of the loss by y, the product
with v has a part in W from the gradient's own graph and a part from the model's, g^T r + h^T x with r and h what comes
from the layers around. autograd writes each part for each shard into a new tensor of W's size and adds them up one by
one. Here a matrix product adds its part to the sum over all shards as it computes it, and what reaches g is collected
in the same way.

The layers that most of a product goes through, in forms that are quick to differentiate twice.

Attention whose queries are one that is broadcast is computed for one query, and the result is broadcast.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from scala_lab.models.fast_layers import first_query_mask, is_broadcast_query


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


_of_this_thread = threading.local()


@contextmanager
def added_to(sums: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """While this lasts, backward passes of this thread add derivatives by weights to their sums and do not return them.

    Weights without a sum get no derivative; passes that build a graph return theirs all the same.
    """
    _of_this_thread.sums = sums
    try:
        yield
    finally:
        _of_this_thread.sums = None


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _give(weight: Tensor, left: Tensor, right: Tensor) -> Tensor | None:
    """Add left^T right to the sum of a weight, or return it where there are no sums."""
    sums = getattr(_of_this_thread, "sums", None)
    if sums is None:
        return left.T @ right
    if weight in sums:
        sums[weight].addmm_(left.T, right)
    return None


def _give_bias(bias: Tensor | None, rows: Tensor) -> Tensor | None:
    """Add the sum of rows to that of a bias, or return it where there are no sums."""
    sums = getattr(_of_this_thread, "sums", None)
    if bias is None:
        return None
    if sums is None:
        return rows.sum(0)
    if bias in sums:
        sums[bias] += rows.sum(0)
    return None


class Linear(Function):
    """x W^T + b."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The outputs."""
        ctx.save_for_backward(inputs, weight, bias)
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """The derivatives by inputs, weight and bias."""
        inputs, weight, bias = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            return _LinearGradient.apply(grad, inputs, weight, bias, ctx.needs_input_grad[0])
        rows = _rows(grad)
        before = (rows @ weight).view_as(inputs) if ctx.needs_input_grad[0] else None
        return before, _give(weight, rows, _rows(inputs)), _give_bias(bias, rows)


class _LinearGradient(Function):
    """The derivatives of a linear layer by its inputs, weight and bias, for a gradient by its outputs."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, to_inputs: bool
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        ctx.save_for_backward(grad, inputs, weight)
        ctx.set_materialize_grads(False)
        rows = _rows(grad)
        before = (rows @ weight).view_as(inputs) if to_inputs else None
        return before, rows.T @ _rows(inputs), None if bias is None else rows.sum(0)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor | None) -> Any:
        by_inputs, by_weight, by_bias = vectors
        grad, inputs, weight = ctx.saved_tensors
        rows = _rows(grad)
        to_grad = rows.new_zeros(rows.shape) if by_inputs is None else _rows(by_inputs) @ weight.T
        if by_weight is not None:
            to_grad.addmm_(_rows(inputs), by_weight.T)
        if by_bias is not None:
            to_grad += by_bias
        to_inputs = None if by_weight is None else (rows @ by_weight).view_as(inputs)
        to_weight = None if by_inputs is None else _give(weight, rows, _rows(by_inputs))
        return to_grad.view_as(grad), to_inputs, to_weight, None, None


class QuickLayers(TorchFunctionMode):
    """While this lasts, a model that builds a graph runs linear layers, GELU and LayerNorm by this package's functions.

    The values are the same. What a layer does otherwise (GELU by tanh, LayerNorm over several axes) stays as it is.

    Args:
        weights: The weights that derivatives are taken by: linear layers with other ones stay as they are.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = set(weights)

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        named = kwargs or {}
        if torch.is_grad_enabled():
            if function is functional.linear and not named and args[1] in self.weights:
                return Linear.apply(*args)
            if function is functional.gelu and not named:
                return Gelu.apply(*args)
            if function is functional.layer_norm and len(args[1]) == 1:
                return self._layer_norm(function, *args, **named)
        if function is functional.scaled_dot_product_attention and len(args) == 3 and not named.get("is_causal"):
            return _for_one_query(*args, **named) if is_broadcast_query(args[0]) else function(*args, **named)
        return function(*args, **named)

    def _layer_norm(
        self,
        function: Callable[..., Any],
        inputs: Tensor,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Any:
        if weight is None or bias is None:
            return function(inputs, shape, weight, bias, eps)
        return LayerNorm.apply(inputs, weight, bias, eps)


def _for_one_query(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **named: Any) -> Tensor:
    output = functional.scaled_dot_product_attention(
        query[..., :1, :], key, value, attn_mask=first_query_mask(attn_mask), **named
    )
    return output.expand(*query.shape[:-1], -1)
