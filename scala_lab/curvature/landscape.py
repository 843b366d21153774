"""Loss and accuracy along lines and over planes through a checkpoint.

Directions in weight space to look along: eigenvectors, random filter-normalised ones, and between checkpoints.

At each point the model is called with other weights, w + x * d1 + y * d2, in place of its own; its own are never
written, so they are the same bits afterwards whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from scala_lab.curvature.eigensolvers import EigenResult
from scala_lab.curvature.loss import ParameterSpace, is_regression
from scala_lab.errors import UserError
from scala_lab.methods.base import correct_answers, task_loss
from scala_lab.optim.groups import undecayed_names

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Direction:
    """A vector over some of a model's parameters. Position t along it means weights w + t * parts.

    Attributes:
        label: What the axis of a figure says, with its unit.
        parts: A tensor per parameter name; parameters without one stay where they are.
    """

    label: str
    parts: Mapping[str, Tensor]

    @property
    def norm(self) -> float:
        """Euclidean length: how far the weights move from position 0 to 1."""
        return float(torch.stack([part.double().norm() for part in self.parts.values()]).norm())


def eigenvector_directions(found: EigenResult, gradient: Tensor | None = None) -> list[Direction]:
    """One direction of unit length per eigenvector; the second derivative along it is the eigenvalue.

    Args:
        found: What `top_eigenpairs` returned.
        gradient: Of the loss, as a touched vector; an eigenvector's sign means nothing, so with it each one is
            turned to where the loss rises, which makes several models comparable.
    """
    directions = []
    for number, touched in enumerate(found.touched_eigenvectors, start=1):
        downhill = gradient is not None and float(touched @ gradient) < 0
        parts = _parts(found.space, found.space.full(-touched if downhill else touched))
        directions.append(Direction(f"distance along eigenvector {number} (units of weight)", parts))
    return directions


def filter_normalised(model: nn.Module, seed: int = 0) -> Direction:
    """A random direction whose rows are as long as the weights' rows (Li et al., 2018).

    Each row d of a trainable matrix, a neuron's incoming weights or a token's embedding w, is drawn from a normal
    distribution and rescaled to ||d|| = ||w||, so that models whose weights differ in scale can be compared. Biases and
    normalisation weights do not move.
    """
    rng = torch.Generator().manual_seed(seed)
    still = undecayed_names(model)
    parts = {}
    for name, weight in model.named_parameters():
        if name in still or not weight.requires_grad:
            continue
        drawn = torch.randn(weight.shape, generator=rng, dtype=torch.float32).to(weight.device, weight.dtype)
        rows, targets = drawn.flatten(1), weight.detach().flatten(1)
        scale = targets.norm(dim=1, keepdim=True) / rows.norm(dim=1, keepdim=True)
        parts[name] = (rows * scale).view_as(weight)
    if not parts:
        raise UserError("a filter-normalised direction needs at least one trainable weight matrix")
    return Direction(f"random direction {seed} (in weight norms, row by row)", parts)


def line_between(start: nn.Module, end: nn.Module) -> Direction:
    """From one checkpoint to another of the same architecture: position 0 is `start`, position 1 is `end`."""
    weights, others = dict(start.named_parameters()), dict(end.named_parameters())
    odd = sorted(set(weights) ^ set(others))
    if odd:
        raise UserError(f"a line needs two models of one architecture: only one of them has {odd[0]}")
    for name, weight in weights.items():
        if weight.shape != others[name].shape:
            shapes = f"{tuple(weight.shape)} and {tuple(others[name].shape)}"
            raise UserError(f"a line needs two models of one architecture: {name} has shapes {shapes}")
    parts = {name: others[name].detach().to(weight) - weight.detach() for name, weight in weights.items()}
    return Direction("position between the checkpoints (0 = first, 1 = second)", parts)


def _parts(space: ParameterSpace, full: Tensor) -> dict[str, Tensor]:
    sizes = [value.numel() for value in space.parameters.values()]
    return {
        name: part.view_as(value)
        for (name, value), part in zip(space.parameters.items(), full.split(sizes), strict=True)
    }


def loss_and_accuracy(model: nn.Module, batches: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Mean loss and accuracy of the checkpoint itself; see `slice_1d`."""
    return _Surface(model, batches, []).at()


def slice_1d(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    direction: Direction,
    steps: int = 41,
    span: tuple[float, float] = (-1.0, 1.0),
    *,
    on_point: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """Mean loss and accuracy at evenly spaced positions along a line.

    Args:
        model: The checkpoint, at position 0; every pass runs in eval mode.
        batches: Dicts as the model takes them, `labels` included; of any size, also unequal.
        direction: Along which; position 1 is one length of it away.
        steps: Positions, both ends included; an odd number over a symmetric span includes the checkpoint itself.
        span: First and last position.
        on_point: Called after every point, for progress bars.

    Returns:
        Columns position, loss (nats, or squared error for regression), accuracy (0 to 1; nan for regression).
    """
    import pandas as pd

    surface = _Surface(model, batches, [direction])
    rows = []
    for position in _positions(steps, span):
        rows.append((position, *surface.at(position)))
        if on_point is not None:
            on_point()
    return pd.DataFrame(rows, columns=["position", "loss", "accuracy"])


def slice_2d(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    directions: tuple[Direction, Direction],
    steps: int = 21,
    span: tuple[float, float] = (-1.0, 1.0),
    *,
    y_span: tuple[float, float] | None = None,
    on_point: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """Mean loss and accuracy on a square grid of steps * steps points; see `slice_1d`.

    Args:
        model: The checkpoint, at (0, 0).
        batches: As for `slice_1d`.
        directions: Of x and of y. They are used as they are: not made orthogonal or of one length.
        steps: Points along each side.
        span: First and last x.
        y_span: First and last y; default that of x.
        on_point: Called after every point.

    Returns:
        Columns x, y, loss, accuracy; x runs fastest.
    """
    import pandas as pd

    surface = _Surface(model, batches, directions)
    rows = []
    for y in _positions(steps, y_span or span):
        for x in _positions(steps, span):
            rows.append((x, y, *surface.at(x, y)))
            if on_point is not None:
                on_point()
    return pd.DataFrame(rows, columns=["x", "y", "loss", "accuracy"])


def _positions(steps: int, span: tuple[float, float]) -> list[float]:
    if steps < 2 or not span[0] < span[1]:
        raise UserError(f"a slice needs at least 2 steps from a lower to a higher position, not {steps} over {span}")
    return [float(position) for position in np.linspace(*span, steps)]


class _Surface:
    """Loss and accuracy as a function of the position."""

    def __init__(self, model: nn.Module, batches: Iterable[Mapping[str, Any]], directions: Sequence[Direction]) -> None:
        self.model, self.directions = model, directions
        self.weights = {name: weight.detach() for name, weight in model.named_parameters()}
        for direction in directions:
            for name, part in direction.parts.items():
                if name not in self.weights or part.shape != self.weights[name].shape:
                    raise UserError(f"the direction is not one of this model: {name} is not there or of another shape")
        device = next(iter(self.weights.values())).device
        self.batches = [{name: torch.as_tensor(value).to(device) for name, value in batch.items()} for batch in batches]
        self.samples = sum(len(batch["labels"]) for batch in self.batches if "labels" in batch)
        if self.samples == 0 or any("labels" not in batch for batch in self.batches):
            raise UserError("a slice needs at least one sample, and labels in every batch")
        self.regression = is_regression(model, [batch["labels"] for batch in self.batches])

    def at(self, *position: float) -> tuple[float, float]:
        """Mean loss and accuracy there."""
        weights = self._moved(position)
        loss, correct = 0.0, 0
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                for batch in self.batches:
                    inputs = {name: value for name, value in batch.items() if name != "labels"}
                    logits = functional_call(self.model, weights, args=(), kwargs=inputs).logits
                    loss += float(task_loss(logits, batch["labels"], self.regression).double().sum())
                    correct += int(correct_answers(logits, batch["labels"], self.regression))
        finally:
            self.model.train(training)
        return loss / self.samples, float("nan") if self.regression else correct / self.samples

    def _moved(self, position: Sequence[float]) -> dict[str, Tensor]:
        """Weights at the position; at 0 the model's own."""
        moved = dict(self.weights)
        for direction, distance in zip(self.directions, position, strict=True):
            if distance != 0:
                for name, part in direction.parts.items():
                    moved[name] = moved[name] + distance * part.to(moved[name])
        return moved
