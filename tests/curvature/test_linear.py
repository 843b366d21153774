"""Linear layers that add their share of a product to its sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scala_lab.curvature.autograd import QuickLayers, added_to


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


def product(net: Net, inputs: Tensor, weights: list[Tensor], mode: bool, sums: dict[Tensor, Tensor] | None) -> list:
    if mode:
        with QuickLayers(list(net.parameters())):
            loss = net(inputs)
    else:
        loss = net(inputs)
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    if sums is None:
        return list(torch.autograd.grad(gradients, weights, vectors_like(weights), allow_unused=True))
    with added_to(sums):
        return list(torch.autograd.grad(gradients, weights, vectors_like(weights), allow_unused=True))


def test_product_is_that_of_plain_layers(net: Net, inputs: Tensor) -> None:
    weights = list(net.parameters())
    expected = product(net, inputs, weights, mode=False, sums=None)
    found = product(net, inputs, weights, mode=True, sums=None)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_product_is_added_to_what_is_there(net: Net, inputs: Tensor) -> None:
    weights = list(net.parameters())
    expected = product(net, inputs, weights, mode=False, sums=None)
    sums = {weight: torch.ones_like(weight) for weight in weights}
    returned = product(net, inputs, weights, mode=True, sums=sums)
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
    expected = product(net, inputs, weights, mode=False, sums=None)
    sums = {weight: torch.zeros_like(weight) for weight in asked}
    returned = product(net, inputs, weights, mode=True, sums=sums)
    assert returned == [None] * len(weights)
    for weight, part in zip(weights, expected, strict=True):
        if weight in asked:
            torch.testing.assert_close(sums[weight], part)


def test_inputs_that_need_a_gradient_get_it(net: Net, inputs: Tensor) -> None:
    inputs.requires_grad_()
    (expected,) = torch.autograd.grad(net(inputs), inputs)
    with QuickLayers(list(net.parameters())):
        (found,) = torch.autograd.grad(net(inputs), inputs)
    torch.testing.assert_close(found, expected)


def test_sums_end_with_their_block(net: Net, inputs: Tensor) -> None:
    weights = list(net.parameters())
    with QuickLayers(weights):
        loss = net(inputs)
    with pytest.raises(ZeroDivisionError), added_to({}):
        raise ZeroDivisionError
    assert all(part is not None for part in torch.autograd.grad(loss, weights))
