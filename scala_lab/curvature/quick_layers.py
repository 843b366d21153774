"""The layers that most of a product goes through, in forms that are quick to differentiate twice.

Attention whose queries are one that is broadcast is computed for one query, and the result is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from scala_lab.curvature.gelu import Gelu
from scala_lab.curvature.layer_norm import LayerNorm
from scala_lab.curvature.linear import Linear
from scala_lab.models.attention import first_query_mask, is_broadcast_query


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
