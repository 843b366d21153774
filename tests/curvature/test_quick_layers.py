"""GELU and LayerNorm with second derivatives of their own, beside torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from scala_lab.curvature.autograd import QuickLayers

WEIGHT, BIAS = (torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

LAYERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "gelu": lambda inputs, weight, bias: functional.gelu(inputs * weight + bias),
    "gelu by tanh": lambda inputs, weight, bias: functional.gelu(inputs * weight + bias, approximate="tanh"),
    "layer norm": lambda inputs, weight, bias: functional.layer_norm(inputs, (6,), weight, bias, 1e-3),
    "layer norm, values by name": lambda inputs, weight, bias: functional.layer_norm(
        inputs, [6], weight=weight, bias=bias
    ),
    "layer norm without bias": lambda inputs, weight, bias: functional.layer_norm(inputs, (6,), weight) + bias,
    "layer norm over two axes": lambda inputs, weight, bias: functional.layer_norm(inputs, (4, 6)) * weight + bias,
    "two layer norms": lambda inputs, weight, bias: functional.layer_norm(
        functional.gelu(functional.layer_norm(inputs, (6,), weight, bias)), (6,), bias, weight
    ),
}


def second_derivatives(layer: Callable[[Tensor, Tensor, Tensor], Tensor], quick: bool) -> list[Tensor]:
    """Value, gradient, and products with vectors for all, for each alone, of a loss that bends after the layer."""
    rng = torch.Generator().manual_seed(3)
    inputs = torch.randn(3, 4, 6, dtype=torch.float64, generator=rng)
    leaves = [tensor.clone().requires_grad_() for tensor in (inputs, WEIGHT, BIAS)]
    if quick:
        with QuickLayers(leaves):
            loss = layer(*leaves).sin().sum()
    else:
        loss = layer(*leaves).sin().sum()
    gradient = torch.autograd.grad(loss, leaves, create_graph=True)
    vectors = [torch.randn(leaf.shape, dtype=leaf.dtype, generator=rng) for leaf in leaves]
    found = [loss, *gradient]
    for chosen in (range(3), [0], [1], [2]):
        ends, cotangents = [gradient[place] for place in chosen], [vectors[place] for place in chosen]
        found += torch.autograd.grad(ends, leaves, cotangents, retain_graph=True, materialize_grads=True)
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_are_those_of_torch(name: str) -> None:
    found, expected = (second_derivatives(LAYERS[name], quick) for quick in (True, False))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["gelu", "layer norm"])
def test_gradients_without_a_graph_are_those_of_torch(name: str) -> None:
    leaves = [torch.randn(2, 6, dtype=torch.float64), WEIGHT.clone(), BIAS.clone()]
    for leaf in leaves:
        leaf.requires_grad_()
    expected = torch.autograd.grad(LAYERS[name](*leaves).sin().sum(), leaves)
    with QuickLayers(leaves):
        loss = LAYERS[name](*leaves).sin().sum()
    for one, other in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_layers_are_really_other_ones() -> None:
    inputs = torch.randn(2, 6, requires_grad=True)
    with QuickLayers([]):
        names = {
            functional.gelu(inputs).grad_fn.name(),
            functional.layer_norm(inputs, (6,), WEIGHT.float(), BIAS.float()).grad_fn.name(),
        }
        with torch.no_grad():
            assert functional.gelu(inputs).grad_fn is None
    assert names == {"GeluBackward", "LayerNormBackward"}
