"""How fast bare products of matrices are in the shapes of a model's own training step.

A linear layer of a training step is three products over the T tokens of a micro-batch: outputs from inputs, the
gradient of the inputs, and the gradient of the weights. Their rate on this machine, with nothing else around them, is
what a step of that model could reach at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def token_layers(model: Any) -> list[tuple[int, int]]:
    """(inputs, outputs) of every linear layer that runs over all tokens; pooler and head see one token of a row."""
    layers = model.base_model.encoder
    return [(layer.in_features, layer.out_features) for layer in layers.modules() if isinstance(layer, nn.Linear)]


def token_parameters(model: Any) -> int:
    """Parameters that every token passes: the encoder's layers, without embeddings, pooler and head."""
    return sum(parameter.numel() for parameter in model.base_model.encoder.parameters())


class BareMatmuls:
    """The products of one training step, on random matrices.

    Args:
        layers: (inputs, outputs) of each linear layer.
        tokens: Of each micro-batch, padding included.
    """

    def __init__(self, layers: Sequence[tuple[int, int]], tokens: Sequence[int]) -> None:
        self.tokens, self.layers = tokens, layers
        widest, longest = max(max(shape) for shape in layers), max(tokens)
        self.left, self.right = torch.randn(2, longest, widest)
        self.weights = {shape: torch.randn(shape[1], shape[0]) for shape in set(layers)}
        self.flops = sum(6.0 * count * inputs * outputs for count in tokens for inputs, outputs in layers)

    def rate(self) -> float:
        """Floating-point operations per second over the whole step."""
        started = time.perf_counter()
        for count in self.tokens:
            for shape in self.layers:
                self._layer(count, shape)
        return self.flops / (time.perf_counter() - started)

    def _layer(self, count: int, shape: tuple[int, int]) -> Tensor:
        inputs, outputs = shape
        x, gradient = self.left[:count, :inputs], self.right[:count, :outputs]
        weight = self.weights[shape]
        torch.mm(x, weight.T)
        torch.mm(gradient, weight)
        return torch.mm(gradient.T, x)
