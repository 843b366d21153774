"""Linear layers that add their share of a product where it belongs.

Most of a Hessian product is linear layers. For a layer y = x W^T + b and the gradient g of the loss by y, the product
with v has a part in W from the gradient's own graph and a part from the model's, g^T r + h^T x with r and h what comes
from the layers around. autograd writes each part for each shard into a new tensor of W's size and adds them up one by
one. Here a matrix product adds its part to the sum over all shards as it computes it, and what reaches g is collected
in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

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
