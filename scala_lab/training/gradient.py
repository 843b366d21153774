"""All gradients in one flat buffer, with all else that workers tell one another at its end: one message per step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from scala_lab.errors import UserError
from scala_lab.methods.step import STATISTICS
from scala_lab.training.faults import name_workers

if TYPE_CHECKING:
    from scala_lab.training.world import World


class GradientBuffer:
    """A flat tensor whose slices are the parameters' `.grad`.

    Micro-batches add into it in place, the all-reduce sums it over workers in one call, and the gradient's
    norm is one reduction. Its tail costs no message of its own:

    - the sums of `STATISTICS`;
    - for each parameter, how many workers' backward passes reached it. One that none reached has no gradient, which
      is not a gradient of 0: optimizers neither decay it nor touch its moments;
    - for each worker, whether its own loss or gradient was not finite.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], workers: int = 1) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        _check(self.parameters)
        first = self.parameters[0]
        sizes = [parameter.numel() for parameter in self.parameters]
        tail = (len(STATISTICS), len(sizes), workers)
        self.flat = torch.zeros(sum(sizes) + sum(tail), dtype=first.dtype, device=first.device)
        self.gradients, self._tail = self.flat.split([sum(sizes), sum(tail)])
        self._statistics, self._reached, self._broken = self._tail.split(tail)
        self._slices = [
            part.view_as(parameter)
            for part, parameter in zip(self.gradients.split(sizes), self.parameters, strict=True)
        ]
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(self.parameters)}
        self._marks = [False] * len(sizes)
        for parameter, gradient in zip(self.parameters, self._slices, strict=True):
            parameter.grad = gradient
            parameter.register_hook(partial(_mark_if_any, self._marks, self._numbers[parameter]))

    def mark(self, parameter: Tensor) -> None:
        """Note that a parameter has a gradient in this step; for functions that add to `.grad` past autograd."""
        number = self._numbers.get(parameter)
        if number is not None:
            self._marks[number] = True

    def clear(self) -> None:
        """Start a new step."""
        self.flat.zero_()
        self._marks[:] = [False] * len(self._marks)

    def count(self, statistics: Tensor) -> None:
        """Add a micro-batch's statistics."""
        self._statistics += statistics.to(self._statistics)

    def sum_over(self, world: World) -> None:
        """Replace everything by its sum over all workers."""
        self._reached.copy_(torch.tensor(self._marks))
        if world.size > 1:
            loss, norm = self._statistics[STATISTICS.index("loss")], self.gradients.norm()
            self._broken[world.rank] = ~loss.isfinite() + 2 * ~norm.isfinite()
        world.sum(self.flat)
        self.__dict__.pop("_sums", None)

    @cached_property
    def _sums(self) -> list[float]:
        """The tail, brought from the device once per step."""
        return self._tail.tolist()

    def statistics(self) -> dict[str, float]:
        """The sums over all samples of the step, by name."""
        return dict(zip(STATISTICS, self._sums, strict=False))

    def divide(self, divisor: float) -> None:
        """Undo the scale of a loss."""
        self.gradients.div_(divisor)

    def clip(self, most: float) -> float:
        """The gradient's norm; when `most` is positive and smaller, the gradient is scaled down to it.

        The factor is that of torch.nn.utils.clip_grad_norm_.
        """
        norm = float(self.gradients.norm())
        if 0 < most < norm + 1e-6:
            self.gradients.mul_(most / (norm + 1e-6))
        return norm

    @contextmanager
    def only_reached(self) -> Iterator[None]:
        """For an optimizer's step: parameters that no backward pass of any worker has reached have no `.grad`."""
        reached = self._sums[len(STATISTICS) :][: len(self.parameters)]
        hidden = [number for number, count in enumerate(reached) if not count]
        for number in hidden:
            self.parameters[number].grad = None
        try:
            yield
        finally:
            for number in hidden:
                self.parameters[number].grad = self._slices[number]

    def describe_broken(self, norm: float) -> str:
        """What is not finite, and on which workers as far as each could see it itself.

        Args:
            norm: The gradient's, from `clip`.
        """
        flags = [round(flag) for flag in self._sums[len(STATISTICS) + len(self.parameters) :]]
        found = [
            f"{name_workers([rank for rank, flag in enumerate(flags) if flag == kind])}: {_NOT_FINITE[kind]}"
            for kind in sorted(set(flags) - {0})
        ]
        if found:
            return "; ".join(found)
        loss_broken = not math.isfinite(self.statistics()["loss"])
        return _NOT_FINITE[loss_broken + 2 * (not math.isfinite(norm))]


def _mark_if_any(marks: list[bool], number: int, gradient: Tensor | None) -> None:
    """Hear from autograd that a backward pass has come to a parameter, with a gradient or with none for it."""
    if gradient is not None:
        marks[number] = True


_NOT_FINITE = {
    1: "the loss is not finite",
    2: "the gradient is not finite",
    3: "the loss and the gradient are not finite",
}


def _check(parameters: list[nn.Parameter]) -> None:
    """Refuse what cannot be trained in one buffer."""
    if not parameters:
        raise UserError("the model has no trainable parameter: all of them are frozen")
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    if len(kinds) > 1:
        raise UserError(f"the model's parameters are in {' and '.join(kinds)}: training needs all of them in one")
