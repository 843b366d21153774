"""Layers with their second derivatives written out, which make Hessian products faster: linear, GELU and LayerNorm.

`QuickLayers` substitutes them for torch's while a model runs. Attention whose queries are all the same row, broadcast,
is computed for that row alone.
"""

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

from scala_lab.models.fast_layers import is_broadcast_query


class QuickLayers(TorchFunctionMode):
    """Run linear layers, GELU and LayerNorm by this module's functions inside the block, where a graph is built.

    The values are the same. Variants of a layer (GELU by tanh, LayerNorm over several axes) stay torch's, as do linear
    layers whose weight is not among `weights`, those that derivatives are taken by.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = set(weights)

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        named = kwargs or {}
        if torch.is_grad_enabled():
            if function is functional.linear and not named and args[1] in self.weights:
                return _Linear.apply(*args)
            if function is functional.gelu and not named:
                return _Gelu.apply(*args)
            if function is functional.layer_norm and len(args[1]) == 1:
                return _layer_norm(*args, **named)
        causal, attention = named.get("is_causal"), functional.scaled_dot_product_attention
        if function is attention and len(args) == 3 and not causal and is_broadcast_query(args[0]):
            return _attention(*args, **named)
        return function(*args, **named)


def _layer_norm(
    inputs: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    if weight is None or bias is None:
        return functional.layer_norm(inputs, shape, weight, bias, eps)
    return _LayerNorm.apply(inputs, weight, bias, eps)


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **named: Any) -> Tensor:
    """Compute attention for the one row that all queries are, and broadcast the result."""
    mask = None if attn_mask is None else attn_mask[..., :1, :]
    output = functional.scaled_dot_product_attention(query[..., :1, :], key, value, attn_mask=mask, **named)
    return output.expand(*query.shape[:-1], -1)


class _Gelu(Function):
    """x times the normal distribution function at x, with derivatives that are computed once, not in every product.

    A product passes each activation twice, and needs its first and second derivative at inputs that never change. torch
    computes both anew, in a dozen passes over the widest tensors of the model; here the gradient's graph stores them.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.first = None
        return functional.gelu(inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,) = grads
        (inputs,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.first = torch.ops.aten.gelu_backward(torch.ones_like(inputs), inputs.detach())
            return _GeluGradient.apply(grad, inputs, ctx.first)
        return grad * ctx.first if ctx.first is not None else torch.ops.aten.gelu_backward(grad, inputs)


class _GeluGradient(Function):
    """The gradient times the first derivative, differentiable by gradient and inputs."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
        second = (2 - inputs.square()).mul_(torch.exp(-0.5 * inputs.square())).mul_(1 / math.sqrt(2 * math.pi))
        ctx.save_for_backward(first, second.mul_(grad))
        return grad * first

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor) -> Any:
        (vector,) = vectors
        first, second = ctx.saved_tensors
        return vector * first, vector * second, None


class _LayerNorm(Function):
    """LayerNorm over the last axis, with its second derivative written out.

    With x^ = (x - mean) r the normalised inputs, r = 1 / sqrt(variance + eps), and P(u) = r (u - mean(u) - x^ mean(u
    x^)), which is symmetric, the gradient g by the outputs becomes P(g w) by the inputs, sum(g x^) by the weight w and
    sum(g) by the bias. A product weighs these three by vectors u, s, t; the derivatives of the weighted sum are

        by g   w P(u) + s x^ + t
        by x   P(q) - r^2 x^ (mean(u a) - mean(u) mean(a) - mean(u x^) mean(a x^)),   a = g w,
               q = s g - r (u mean(a x^) + a mean(u x^))
        by w   sum(g P(u))

    torch composes the same of some thirty passes over the tokens. P is torch's own kernel for the first derivative, and
    all that does not depend on u, s and t is stored with the graph.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        outputs, mean, rstd = torch.native_layer_norm(inputs, [inputs.shape[-1]], weight, bias, eps)
        ctx.save_for_backward(inputs, mean, rstd, weight, bias)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        inputs, mean, rstd, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_LayerNormGradient.apply(grad, inputs, weight, mean, rstd), None
        arguments = grad, inputs, [inputs.shape[-1]], mean, rstd, weight, bias, [True, True, True]
        return *torch.ops.aten.native_layer_norm_backward(*arguments), None


class _LayerNormGradient(Function):
    """The derivatives of a LayerNorm by inputs, weight and bias, for a gradient by its outputs."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, inputs: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows = tuple(range(grad.ndim - 1))
        xhat, a = (inputs - mean) * rstd, grad * weight
        mean_a_xhat = (a * xhat).mean(-1, keepdim=True)
        ctx.save_for_backward(grad, inputs, weight, mean, rstd, xhat, a, mean_a_xhat)
        return _project(a, inputs, mean, rstd), (grad * xhat).sum(rows), grad.sum(rows)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor | None) -> Any:
        by_inputs, by_weight, by_bias = vectors
        grad, inputs, weight, mean, rstd, xhat, a, mean_a_xhat = ctx.saved_tensors
        to_grad = torch.zeros_like(grad) if by_weight is None else xhat * by_weight
        q = torch.zeros_like(grad) if by_weight is None else grad * by_weight
        if by_bias is not None:
            to_grad += by_bias
        if by_inputs is None:
            return to_grad, _project(q, inputs, mean, rstd), None, None, None
        P_u = _project(by_inputs, inputs, mean, rstd)
        to_grad.addcmul_(P_u, weight)
        to_weight = (grad * P_u).sum(tuple(range(grad.ndim - 1)))
        mean_u_xhat = (by_inputs * xhat).mean(-1, keepdim=True)
        q.addcmul_(by_inputs, mean_a_xhat * rstd, value=-1).addcmul_(a, mean_u_xhat.mul_(rstd), value=-1)
        # mean(u a) - mean(u) mean(a) - mean(u x^) mean(a x^) = mean(a P(u)) / r
        mean_a_P_u = (a * P_u).mean(-1, keepdim=True).mul_(rstd)
        return to_grad, _project(q, inputs, mean, rstd).addcmul_(xhat, mean_a_P_u, value=-1), to_weight, None, None


def _project(vector: Tensor, inputs: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Return P of a vector for each token."""
    shape, output_mask = [inputs.shape[-1]], [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(vector, inputs, shape, mean, rstd, None, None, output_mask)[0]


_thread = threading.local()


@contextmanager
def added_to(sums: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Make backward passes of this thread add derivatives by weights to their sums instead of returning them.

    Weights without a sum get no derivative; passes that build a graph return theirs all the same.
    """
    _thread.sums = sums
    try:
        yield
    finally:
        _thread.sums = None


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _add_or_return(
    weight: Tensor, bias: Tensor | None, left: Tensor, right: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Add left^T right to the sum of a weight and left's to that of a bias; return them where there are no sums."""
    sums = getattr(_thread, "sums", None)
    if sums is None:
        return left.T @ right, None if bias is None else left.sum(0)
    if weight in sums:
        sums[weight].addmm_(left.T, right)
    if bias in sums:
        sums[bias] += left.sum(0)
    return None, None


class _Linear(Function):
    """x W^T + b, whose share of a product is added to the sum over all shards as it is computed.

    For the gradient g of the loss by the outputs, the product with v has a part in W from the gradient's own graph and
    a part from the model's, g^T r + h^T x with r and h from the layers around. autograd writes each part for each shard
    into a new tensor of W's size and adds them up. Here a matrix product accumulates into the sum.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(inputs, weight, bias)
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs, weight, bias = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            return _LinearGradient.apply(grad, inputs, weight, bias, ctx.needs_input_grad[0])
        rows = _rows(grad)
        before = (rows @ weight).view_as(inputs) if ctx.needs_input_grad[0] else None
        return before, *_add_or_return(weight, bias, rows, _rows(inputs))


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
        to_weight = None if by_inputs is None else _add_or_return(weight, None, rows, _rows(by_inputs))[0]
        return to_grad.view_as(grad), to_inputs, to_weight, None, None
