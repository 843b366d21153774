"""Layers with second derivatives of their own beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from scala_lab.curvature.autograd import QuickLayers, added_to

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
    with QuickLayers(leaves) if quick else nullcontext():
        loss = layer(*leaves).sin().sum()
    gradient = torch.autograd.grad(loss, leaves, create_graph=True)
    vectors = [torch.randn(leaf.shape, dtype=leaf.dtype, generator=rng) for leaf in leaves]
    results = [loss, *gradient]
    for chosen in (range(3), [0], [1], [2]):
        ends, cotangents = [gradient[place] for place in chosen], [vectors[place] for place in chosen]
        results += torch.autograd.grad(ends, leaves, cotangents, retain_graph=True, materialize_grads=True)
    return results


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_are_those_of_torch(name: str) -> None:
    results, expected = (second_derivatives(LAYERS[name], quick) for quick in (True, False))
    torch.testing.assert_close(results, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["gelu", "layer norm"])
def test_gradients_without_a_graph_are_those_of_torch(name: str) -> None:
    leaves = [torch.randn(2, 6, dtype=torch.float64), WEIGHT.clone(), BIAS.clone()]
    for leaf in leaves:
        leaf.requires_grad_()
    expected = torch.autograd.grad(LAYERS[name](*leaves).sin().sum(), leaves)
    with QuickLayers(leaves):
        loss = LAYERS[name](*leaves).sin().sum()
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), expected)


def test_the_layers_are_really_other_ones() -> None:
    inputs = torch.randn(2, 6, requires_grad=True)
    with QuickLayers([]):
        names = {
            functional.gelu(inputs).grad_fn.name(),
            functional.layer_norm(inputs, (6,), WEIGHT.float(), BIAS.float()).grad_fn.name(),
        }
        with torch.no_grad():
            assert functional.gelu(inputs).grad_fn is None
    assert names == {"_GeluBackward", "_LayerNormBackward"}


class Net(nn.Module):
    """Three layers on three axes, one of them twice, one without bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice, self.last = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.twice(torch.tanh(self.first(inputs)))
        return self.last(torch.tanh(self.twice(torch.tanh(hidden)))).pow(2).sum()


@pytest.fixture
def net() -> Net:
    return Net().double()


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def vectors_like(weights: list[Tensor]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(2)
    return [torch.randn(weight.shape, dtype=weight.dtype, generator=rng) for weight in weights]


def product(net: Net, inputs: Tensor, weights: list[Tensor], quick: bool, sums: dict | None = None) -> list:
    with QuickLayers(list(net.parameters())) if quick else nullcontext():
        loss = net(inputs)
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    with nullcontext() if sums is None else added_to(sums):
        return list(torch.autograd.grad(gradients, weights, vectors_like(weights), allow_unused=True))


def test_product_is_that_of_plain_layers(net: Net, inputs: Tensor) -> None:
    results, expected = (product(net, inputs, list(net.parameters()), quick) for quick in (True, False))
    torch.testing.assert_close(results, expected)


def test_product_is_added_to_what_is_there(net: Net, inputs: Tensor) -> None:
    weights = list(net.parameters())
    expected = product(net, inputs, weights, quick=False)
    sums = {weight: torch.ones_like(weight) for weight in weights}
    returned = product(net, inputs, weights, quick=True, sums=sums)
    assert returned == [None] * len(weights)
    for weight, part in zip(weights, expected, strict=True):
        torch.testing.assert_close(sums[weight], 1 + part)


def test_gradient_is_added_as_well(net: Net, inputs: Tensor) -> None:
    weights = list(net.parameters())
    expected = torch.autograd.grad(net(inputs), weights)
    with QuickLayers(weights):
        loss = net(inputs)
    sums = {weight: torch.zeros_like(weight) for weight in weights}
    with added_to(sums):
        torch.autograd.grad(loss, weights, allow_unused=True)
    for weight, part in zip(weights, expected, strict=True):
        torch.testing.assert_close(sums[weight], part)


def test_weights_that_are_not_asked_for_get_nothing(net: Net, inputs: Tensor) -> None:
    weights, asked = list(net.parameters()), set(net.last.parameters())
    expected = product(net, inputs, weights, quick=False)
    sums = {weight: torch.zeros_like(weight) for weight in asked}
    returned = product(net, inputs, weights, quick=True, sums=sums)
    assert returned == [None] * len(weights)
    for weight, part in zip(weights, expected, strict=True):
        if weight in asked:
            torch.testing.assert_close(sums[weight], part)


def test_inputs_that_need_a_gradient_get_it(net: Net, inputs: Tensor) -> None:
    inputs.requires_grad_()
    (expected,) = torch.autograd.grad(net(inputs), inputs)
    with QuickLayers(list(net.parameters())):
        (results,) = torch.autograd.grad(net(inputs), inputs)
    torch.testing.assert_close(results, expected)


def test_sums_end_with_their_block(net: Net, inputs: Tensor) -> None:
    weights = list(net.parameters())
    with QuickLayers(weights):
        loss = net(inputs)
    with pytest.raises(ZeroDivisionError), added_to({}):
        raise ZeroDivisionError
    assert all(part is not None for part in torch.autograd.grad(loss, weights))
