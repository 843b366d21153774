"""Loss and accuracy along lines and over planes through checkpoints in weight space.

At each point the model is called with other weights, w + x * d1 + y * d2, in place of its own; its own are never
written, so they are the same bits afterwards whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.func import functional_call

from scala_lab.config import DataSpec
from scala_lab.curvature.checkpoint import Loaded, SampleOptions, load_with_samples, short_names
from scala_lab.curvature.eigensolvers import EigenResult, top_eigenpairs
from scala_lab.curvature.loss import is_regression, on_device, without_labels
from scala_lab.curvature.operator import HessianOperator
from scala_lab.divergence import correct_answers, task_loss
from scala_lab.errors import UserError
from scala_lab.models.encoder import eval_mode
from scala_lab.optim.build import undecayed_names

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.training.progress import CountBar


@dataclass(frozen=True)
class Direction:
    """A vector over some of a model's parameters, with an axis label; position t means weights w + t * parts."""

    label: str
    parts: Mapping[str, Tensor]

    @property
    def norm(self) -> float:
        """Euclidean length: how far the weights move from position 0 to 1."""
        return float(torch.stack([part.double().norm() for part in self.parts.values()]).norm())


def eigenvector_directions(result: EigenResult, gradient: Tensor | None = None) -> list[Direction]:
    """Return one direction of unit length per eigenvector; the second derivative along it is the eigenvalue.

    The sign of an eigenvector is arbitrary; with the gradient of the loss, as a touched vector, each one points to
    where the loss rises, which makes several models comparable.
    """
    directions = []
    for number, touched in enumerate(result.touched_eigenvectors, start=1):
        downhill = gradient is not None and float(touched @ gradient) < 0
        parts = result.space.named_parts(result.space.full(-touched if downhill else touched))
        directions.append(Direction(f"distance along eigenvector {number} (units of weight)", parts))
    return directions


def filter_normalised(model: nn.Module, seed: int = 0) -> Direction:
    """Draw a random direction whose rows are as long as the weights' rows (Li et al., 2018).

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
    """Return the direction from one checkpoint, at 0, to another of the same architecture, at 1."""
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


def slice_1d(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    direction: Direction,
    steps: int = 41,
    span: tuple[float, float] = (-1.0, 1.0),
    *,
    on_point: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """Compute mean loss and accuracy at `steps` evenly spaced positions along a line, both ends of `span` included.

    The model is at position 0 and runs in eval mode; its batches have `labels` and may be of unequal size.

    Returns:
        Columns position, loss (nats, or squared error for regression), accuracy (0 to 1; nan for regression).
    """
    return _slice(model, batches, {"position": direction}, [(x,) for x in _positions(steps, span)], on_point)


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
    """Compute mean loss and accuracy on a grid of steps * steps points, x fastest; see `slice_1d`.

    The directions of x and y are used as they are: not made orthogonal or of one length. `y_span` is by default `span`.
    """
    points = [(x, y) for y in _positions(steps, y_span or span) for x in _positions(steps, span)]
    return _slice(model, batches, dict(zip("xy", directions, strict=True)), points, on_point)


def _positions(steps: int, span: tuple[float, float]) -> list[float]:
    if steps < 2 or not span[0] < span[1]:
        raise UserError(f"a slice needs at least 2 steps from a lower to a higher position, not {steps} over {span}")
    return [float(position) for position in np.linspace(*span, steps)]


def _slice(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    axes: Mapping[str, Direction],
    points: Sequence[tuple[float, ...]],
    on_point: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """Compute mean loss and accuracy at some points; at 0 the weights are the model's own."""
    import pandas as pd

    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    for name, part in (item for direction in axes.values() for item in direction.parts.items()):
        if name not in weights or part.shape != weights[name].shape:
            raise UserError(f"the direction is not one of this model: {name} is not there or of another shape")
    batches = on_device(batches, next(iter(weights.values())).device)
    samples = sum(len(batch["labels"]) for batch in batches if "labels" in batch)
    if samples == 0 or any("labels" not in batch for batch in batches):
        raise UserError("a slice needs at least one sample, and labels in every batch")
    regression = is_regression(model, [batch["labels"] for batch in batches])
    rows = []
    with eval_mode(model):
        for point in points:
            moved, loss, correct = dict(weights), 0.0, 0
            for direction, distance in zip(axes.values(), point, strict=True):
                for name, part in direction.parts.items() if distance else ():
                    moved[name] = moved[name] + distance * part.to(moved[name])
            with torch.inference_mode():
                for batch in batches:
                    logits = functional_call(model, moved, args=(), kwargs=without_labels(batch)).logits
                    loss += float(task_loss(logits, batch["labels"], regression).double().sum())
                    correct += int(correct_answers(logits, batch["labels"], regression))
            rows.append((*point, loss / samples, float("nan") if regression else correct / samples))
            if on_point is not None:
                on_point()
    return pd.DataFrame(rows, columns=[*axes, "loss", "accuracy"])


@dataclass(frozen=True)
class LandscapeOptions:
    """Which checkpoints to explore in which directions."""

    checkpoints: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, or folders that hold config.json and model.safetensors."""
    data: DataSpec = field(default_factory=DataSpec)
    over: SampleOptions = field(default_factory=SampleOptions)
    directions: Literal["eigenvectors", "random", "between"] = "eigenvectors"
    """eigenvectors: each model's two sharpest directions, of unit length and uphill; random: two random ones,
    filter-normalised (each row as long as the weights' row); between: from the first checkpoint to each of the others,
    and for the plane a random one across."""
    line_points: int = 41
    """Points along each line; 0 for no lines."""
    plane_points: int = 21
    """Points along each side of a plane; 0 for no planes."""
    span: tuple[float, float] | None = None
    """First and last position, the checkpoint being at 0; default -1 1, or -0.5 1.5 between checkpoints at 0 and 1."""
    tol: float = 1e-3
    """Eigenvectors: largest residual of a converged pair."""
    max_products: int = 300
    """Eigenvectors: stop the solver after this many Hessian-vector products."""

    @property
    def x_span(self) -> tuple[float, float]:
        """First and last position along a line."""
        return self.span or ((-0.5, 1.5) if self.directions == "between" else (-1.0, 1.0))

    @property
    def y_span(self) -> tuple[float, float]:
        """First and last position of y: as far as x, but around 0 where x runs from one model to another."""
        low, high = self.x_span
        return ((low - high) / 2, (high - low) / 2) if self.directions == "between" else (low, high)


@dataclass(frozen=True)
class View:
    """Loss and accuracy around one checkpoint, or between two."""

    name: str
    record: dict[str, Any]  # checkpoints, their loss and accuracy, residuals of the directions; ready for JSON
    directions: tuple[str, str]  # labels of x and y
    lines: list[pd.DataFrame]
    plane: pd.DataFrame | None
    unit: str  # of the loss


def explore(options: LandscapeOptions, device: torch.device, bar: CountBar) -> list[View]:
    """Return one view per checkpoint, or per checkpoint after the first for the lines between them."""
    return list((_between if options.directions == "between" else _around)(options, device, bar))


def _around(options: LandscapeOptions, device: torch.device, bar: CountBar) -> Iterator[View]:
    """View each checkpoint in directions of its own."""
    over = options.over
    for checkpoint, name in short_names(options.checkpoints).items():
        loaded = load_with_samples(Path(checkpoint), options.data, over, device)
        model, batches = loaded.model, loaded.sets[0]
        record: dict[str, Any] = {"checkpoint": checkpoint, **_at_origin(loaded, checkpoint)}
        if options.directions == "random":
            first, second = (filter_normalised(model, seed) for seed in (2 * over.seed, 2 * over.seed + 1))
        else:
            bar.begin(name, "products")
            op = HessianOperator(model, batches, budget=over.budget, on_product=bar.count)
            top = top_eigenpairs(op, 2, options.tol, max_products=options.max_products, seed=over.seed)
            first, second = eigenvector_directions(top, op.gradient())
            record |= top.record()
        yield _view(options, name, loaded, first, second, record, bar)


def _between(options: LandscapeOptions, device: torch.device, bar: CountBar) -> Iterator[View]:
    """View the first checkpoint, each time in the direction of another one."""
    names = short_names(options.checkpoints)
    start, *ends = names
    loaded = load_with_samples(Path(start), options.data, options.over, device)
    at_start = _at_origin(loaded, start)
    across = filter_normalised(loaded.model, 2 * options.over.seed)
    for end in ends:
        other = load_with_samples(Path(end), options.data, options.over, device)
        at_end = {f"other_{name}": value for name, value in _at_origin(other, end).items()}
        along = line_between(loaded.model, other.model)
        record = {"checkpoint": start, "other": end, "distance": along.norm, **at_start, **at_end}
        yield _view(options, f"{names[start]} to {names[end]}", loaded, along, across, record, bar)


def _at_origin(loaded: Loaded, checkpoint: str) -> dict[str, float | None]:
    """Return loss and accuracy of the checkpoint itself; the accuracy of a regression is None."""
    loss, accuracy = map(float, _slice(loaded.model, loaded.sets[0], {}, [()]).iloc[0])
    if not np.isfinite(loss):
        raise UserError(f"{checkpoint}: the mean loss over these rows is {loss}, so there is no landscape")
    return {"loss": loss, "accuracy": None if np.isnan(accuracy) else accuracy}


def _view(
    options: LandscapeOptions,
    name: str,
    loaded: Loaded,
    x: Direction,
    y: Direction,
    record: dict[str, Any],
    bar: CountBar,
) -> View:
    """Slice along both directions, or from one model to the other, and over their plane."""
    model, batches, span, between = loaded.model, loaded.sets[0], options.x_span, options.directions == "between"
    steps, side = options.line_points, options.plane_points
    directions = [] if not steps else [x] if between else [x, y]
    bar.begin(name, "points", total=len(directions) * steps + side**2)
    lines = [slice_1d(model, batches, direction, steps, span, on_point=bar.count) for direction in directions]
    plane = None
    if side:
        plane = slice_2d(model, batches, (x, y), side, span, y_span=options.y_span, on_point=bar.count)
    if between and lines:
        record["barrier"] = barrier(lines[0], record["loss"], record["other_loss"])
    return View(name, record, (x.label, y.label), lines, plane, loaded.unit)


def barrier(line: pd.DataFrame, start: float, end: float) -> float:
    """Return how far the loss from 0 to 1 rises above the straight line between its ends; 0 where it never does."""
    inside = line[(line["position"] >= 0) & (line["position"] <= 1)]
    straight = (1 - inside["position"]) * start + inside["position"] * end
    rise = (inside["loss"] - straight).max(skipna=False) if len(inside) else 0.0
    return float(np.maximum(rise, 0.0))
