"""Loss and accuracy along lines and over planes through a checkpoint.

At each point the model is called with other weights, w + x * d1 + y * d2, in place of its own; its own are never
written, so they are the same bits afterwards whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from scala_lab.curvature.directions import Direction
from scala_lab.curvature.loss import is_regression
from scala_lab.errors import UserError
from scala_lab.methods.task_loss import correct_answers, task_loss

if TYPE_CHECKING:
    import pandas as pd


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
