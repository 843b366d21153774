"""Loss and accuracy around checkpoints, as `scala-lab landscape` was asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from scala_lab.commands.checkpoints import pick_device, short_names
from scala_lab.commands.count_bar import CountBar
from scala_lab.commands.samples import Loaded, load_with_samples
from scala_lab.cores import default_threads
from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.directions import Direction, eigenvector_directions, filter_normalised, line_between
from scala_lab.curvature.landscape import loss_and_accuracy, slice_1d, slice_2d
from scala_lab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.commands.landscape_options import Landscape


@dataclass(frozen=True)
class View:
    """What was seen around one checkpoint, or between two.

    Attributes:
        name: What figures call it.
        record: Where it was looked at and the evidence for the directions, ready for JSON.
        directions: Labels of x and y.
        lines: What `slice_1d` returned along each direction that has a line of its own.
        plane: What `slice_2d` returned, or None.
        unit: Of the loss.
    """

    name: str
    record: dict[str, Any]
    directions: tuple[str, str]
    lines: list[pd.DataFrame]
    plane: pd.DataFrame | None
    unit: str


@dataclass(frozen=True)
class _Outlook:
    """A model, the directions to look in from there, and what is known before looking."""

    name: str
    loaded: Loaded
    directions: tuple[Direction, Direction]
    record: dict[str, Any]


def explore(options: Landscape) -> list[View]:
    """One view per checkpoint, or per checkpoint after the first for the lines between them."""
    torch.set_num_threads(options.over.threads or default_threads())
    outlooks = _between if options.directions == "between" else _around
    with CountBar() as bar:
        return [_view(options, outlook, bar) for outlook in outlooks(options, bar)]


def _around(options: Landscape, bar: CountBar) -> Iterator[_Outlook]:
    """Each checkpoint with directions of its own."""
    for checkpoint, name in short_names(options.checkpoints).items():
        loaded = _load(options, Path(checkpoint))
        record: dict[str, Any] = {"checkpoint": checkpoint, **_here(loaded, checkpoint)}
        if options.directions == "random":
            seed = options.over.seed
            directions = filter_normalised(loaded.model, 2 * seed), filter_normalised(loaded.model, 2 * seed + 1)
        else:
            bar.start(name, "products")
            directions, evidence = _sharpest(options, loaded, bar)
            record |= evidence
        yield _Outlook(name, loaded, directions, record)


def _between(options: Landscape, bar: CountBar) -> Iterator[_Outlook]:
    """The first checkpoint, each time with the direction to another one."""
    names = short_names(options.checkpoints)
    start, *ends = names
    loaded = _load(options, Path(start))
    here = _here(loaded, start)
    across = filter_normalised(loaded.model, 2 * options.over.seed)
    for end in ends:
        other = _load(options, Path(end))
        there = {f"other_{name}": value for name, value in _here(other, end).items()}
        along = line_between(loaded.model, other.model)
        record = {"checkpoint": start, "other": end, "distance": along.norm, **here, **there}
        yield _Outlook(f"{names[start]} to {names[end]}", loaded, (along, across), record)


def _load(options: Landscape, checkpoint: Path) -> Loaded:
    return load_with_samples(checkpoint, options.data, options.over, pick_device(options.over.device))


def _here(loaded: Loaded, checkpoint: str) -> dict[str, float | None]:
    """Loss and accuracy of the checkpoint itself; the accuracy of a regression is None."""
    loss, accuracy = loss_and_accuracy(loaded.model, loaded.sets[0])
    if not np.isfinite(loss):
        raise UserError(f"{checkpoint}: the mean loss over these rows is {loss}, so there is no landscape")
    return {"loss": loss, "accuracy": None if np.isnan(accuracy) else accuracy}


def _sharpest(options: Landscape, loaded: Loaded, bar: CountBar) -> tuple[tuple[Direction, Direction], dict[str, Any]]:
    """The two top eigenvectors, turned uphill, with their eigenvalues and residuals."""
    op = HessianOperator(loaded.model, loaded.sets[0], budget=options.over.budget, on_product=bar.advance)
    found = top_eigenpairs(op, 2, options.tol, max_products=options.max_products, seed=options.over.seed)
    first, second = eigenvector_directions(found, op.gradient())
    return (first, second), {
        "eigenvalues": found.eigenvalues.tolist(),
        "residuals": found.residuals.tolist(),
        "hvps": found.hvps,
        "converged": found.converged,
    }


def _view(options: Landscape, outlook: _Outlook, bar: CountBar) -> View:
    model, batches = outlook.loaded.model, outlook.loaded.sets[0]
    with_lines = outlook.directions[: 1 if options.directions == "between" else 2] if options.line_points else ()
    bar.start(outlook.name, "points", total=len(with_lines) * options.line_points + options.plane_points**2)
    lines = [
        slice_1d(model, batches, direction, options.line_points, options.x_span, on_point=bar.advance)
        for direction in with_lines
    ]
    plane = None
    if options.plane_points:
        plane = slice_2d(
            model,
            batches,
            outlook.directions,
            options.plane_points,
            options.x_span,
            y_span=options.y_span,
            on_point=bar.advance,
        )
    record = outlook.record
    if options.directions == "between" and lines:
        record = {**record, "barrier": barrier(lines[0], record["loss"], record["other_loss"])}
    x, y = outlook.directions
    return View(outlook.name, record, (x.label, y.label), lines, plane, outlook.loaded.unit)


def barrier(line: pd.DataFrame, start: float, end: float) -> float:
    """How far the loss on the way rises above the straight line between its ends: 0 where it never does."""
    on_the_way = line[(line["position"] >= 0) & (line["position"] <= 1)]
    straight = (1 - on_the_way["position"]) * start + on_the_way["position"] * end
    rise = (on_the_way["loss"] - straight).max(skipna=False) if len(on_the_way) else 0.0
    return float(np.maximum(rise, 0.0))
