"""`scala-lab landscape`: loss and accuracy around saved checkpoints, along lines and over planes.

The options of `scala-lab landscape`.

Loss and accuracy around checkpoints, as `scala-lab landscape` was asked for them.

What `scala-lab landscape` saw, as a table, as files and as figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import tyro
from rich.table import Table

from scala_lab.cli import result_console
from scala_lab.commands.checkpoints import (
    Loaded,
    SampleOptions,
    check_checkpoints,
    check_distinct,
    check_new_folder,
    check_samples,
    load_with_samples,
    parse_with_run_data,
    pick_device,
    short_names,
)
from scala_lab.config import DataSpec
from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.landscape import (
    Direction,
    eigenvector_directions,
    filter_normalised,
    line_between,
    loss_and_accuracy,
    slice_1d,
    slice_2d,
)
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json
from scala_lab.machine import default_threads
from scala_lab.training.progress import CountBar

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Landscape:
    """Loss and accuracy around checkpoints, along lines and over planes in weight space, several on one scale.

    --out gets the figures (PNG and SVG), line.csv, plane.csv and landscape.json. The loss is the plain task loss over
    a fixed, seeded set of rows, in eval mode. Without --task the rows are those that the first run folder was
    trained on.

        scala-lab landscape runs/a runs/b runs/c --out landscape
        scala-lab landscape model --task sst2 --data-dir glue --directions random --span -0.5 0.5 --out landscape
        scala-lab landscape runs/a runs/b --directions between --plane-points 0 --out path
    """

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
    out: Path | None = None
    """Folder for figures and tables; needed."""

    @property
    def x_span(self) -> tuple[float, float]:
        """First and last position along a line."""
        return self.span or ((-0.5, 1.5) if self.directions == "between" else (-1.0, 1.0))

    @property
    def y_span(self) -> tuple[float, float]:
        """First and last position across: as far as along, but around 0 where x runs from one model to another."""
        low, high = self.x_span
        return ((low - high) / 2, (high - low) / 2) if self.directions == "between" else (low, high)


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


def show_views(views: list[View], options: Landscape) -> None:
    """Print one line per view: the checkpoint itself, and what says how far the directions can be trusted."""
    over = options.over
    table = Table(title=f"{options.data.task}, {over.samples} {over.rows} rows, {options.directions}")
    table.add_column("checkpoint", overflow="fold")
    columns = _between_columns if options.directions == "between" else _own_columns
    for heading in columns(views[0].record):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in views:
        table.add_row(view.name, *columns(view.record).values())
    result_console().print(table)


def _own_columns(record: dict[str, Any]) -> dict[str, str]:
    cells = {"loss": f"{record['loss']:.4f}", "accuracy": _share(record["accuracy"])}
    if "eigenvalues" in record:
        cells["eigenvalues"] = "\n".join(f"{value:.5g}" for value in record["eigenvalues"])
        cells["residual"] = "\n".join(f"{value:.1e}" for value in record["residuals"])
        cells["converged"] = "yes" if record["converged"] else "NO"
    return cells


def _between_columns(record: dict[str, Any]) -> dict[str, str]:
    cells = {
        "loss at 0": f"{record['loss']:.4f}",
        "loss at 1": f"{record['other_loss']:.4f}",
        "accuracy at 0": _share(record["accuracy"]),
        "accuracy at 1": _share(record["other_accuracy"]),
        "distance": f"{record['distance']:.4g}",
    }
    return cells | ({"barrier": f"{record['barrier']:.4f}"} if "barrier" in record else {})


def _share(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2%}"


def write_views(views: list[View], options: Landscape) -> None:
    """Write the folder with tables and figures, complete or not at all."""
    assert options.out is not None
    from scala_lab.report.figures.style import save_figure

    settings = {
        "task": options.data.task,
        "rows": options.over.rows,
        "samples": options.over.samples,
        "seed": options.over.seed,
        "directions": options.directions,
        "span": list(options.x_span),
    }
    with new_folder(options.out) as folder:
        write_json(folder / "landscape.json", [{**settings, **view.record} for view in views])
        if options.line_points:
            _long_table(views, "line").to_csv(folder / "line.csv", index=False)
        if options.plane_points:
            _long_table(views, "plane").to_csv(folder / "plane.csv", index=False)
        for name, figure in _figures(views, options):
            save_figure(figure, folder / name)
    print(f"report: {options.out}", file=sys.stderr)


def _long_table(views: list[View], kind: Literal["line", "plane"]) -> pd.DataFrame:
    """The slices of all views under one another, with what they belong to in front."""
    import pandas

    parts = []
    for view in views:
        owner = {name: view.record[name] for name in ("checkpoint", "other") if name in view.record}
        if kind == "line":
            parts += [line.assign(**owner, direction=number) for number, line in enumerate(view.lines, start=1)]
        elif view.plane is not None:
            parts.append(view.plane.assign(**owner))
    table = pandas.concat(parts, ignore_index=True)
    values = ["position", "x", "y", "loss", "accuracy"]
    return table[sorted(table.columns, key=lambda name: (name in values, list(table.columns).index(name)))]


def _figures(views: list[View], options: Landscape) -> Iterator[tuple[str, Figure]]:
    """Names and figures, all views in each."""
    from scala_lab.report.figures.landscape import side_by_side, slice_1d_plot

    first = views[0]
    where = {
        "eigenvectors": "along top eigenvectors of the Hessian",
        "random": "in random filter-normalised directions",
        "between": "between checkpoints",
    }[options.directions]
    marks = (0.0, 1.0) if options.directions == "between" else (0.0,)
    for number, label in enumerate(first.directions[: len(first.lines)], start=1):
        lines = {view.name: view.lines[number - 1] for view in views}
        title = f"Loss and accuracy {where}" if first.record["accuracy"] is not None else f"Loss {where}"
        yield f"line-{number}", slice_1d_plot(lines, title, label, first.unit, marks=marks)
    planes = {view.name: view.plane for view in views if view.plane is not None}
    values: list[Literal["loss", "accuracy"]] = ["loss"] if first.record["accuracy"] is None else ["loss", "accuracy"]
    for value in values if planes else []:
        for kind in ("contour", "surface"):
            title = f"{value.capitalize()} {where}" + (", on one scale" if len(planes) > 1 else "")
            yield (
                f"{kind}-{value}",
                side_by_side(planes, title, *first.directions, first.unit, kind=kind, value=value, marks=marks),
            )


def parse(args: list[str]) -> Landscape:
    """Flags; without --task, the data of the first run folder."""
    return parse_with_run_data(Landscape, args, prog="scala-lab landscape")


def run(options: Landscape) -> int:
    """Walk around every checkpoint, print a table, draw; 1 if an eigenvector has not converged."""
    _check(options)

    views = explore(options)
    show_views(views, options)
    write_views(views, options)
    return 0 if all(view.record.get("converged", True) for view in views) else 1


def _check(options: Landscape) -> None:
    check_checkpoints(options.checkpoints)
    check_distinct(options.checkpoints)
    check_samples(options.over, options.data)
    if options.directions == "between" and len(options.checkpoints) < 2:
        raise UserError("--directions between needs at least two checkpoints")
    for name in ("line_points", "plane_points"):
        if getattr(options, name) < 0 or getattr(options, name) == 1:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} must be at least 2, or 0 for none, not {getattr(options, name)}")
    if not options.line_points and not options.plane_points:
        raise UserError("--line-points and --plane-points are both 0: there is nothing to look at")
    low, high = options.x_span
    if not -float("inf") < low < high < float("inf"):
        raise UserError(f"--span must go from a lower to a higher number, not from {low:g} to {high:g}")
    if not 0 < options.tol < float("inf"):
        raise UserError(f"--tol must be positive, not {options.tol}")
    if options.max_products < 2:
        raise UserError(f"--max-products must be at least 2, not {options.max_products}: there are two eigenvectors")
    if options.out is None:
        raise UserError("--out is needed: the folder for figures and tables")
    check_new_folder(options.out)
