"""`scala-lab landscape`: loss and accuracy around saved checkpoints, along lines and over planes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.table import Table

from scala_lab.cli import check_checkpoints, check_new_folder, result_console
from scala_lab.curvature.landscape import LandscapeOptions, View, explore
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json
from scala_lab.machine import default_threads, pick_device
from scala_lab.training.progress import CountBar

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Landscape(LandscapeOptions):
    """Loss and accuracy around checkpoints, along lines and over planes in weight space, several on one scale.

    --out gets the figures (PNG and SVG), line.csv, plane.csv and landscape.json. The loss is the plain task loss over
    a fixed, seeded set of rows, in eval mode. Without --task the rows are those that the first run folder was
    trained on.

        scala-lab landscape runs/a runs/b runs/c --out landscape
        scala-lab landscape model --task sst2 --data-dir glue --directions random --span -0.5 0.5 --out landscape
        scala-lab landscape runs/a runs/b --directions between --plane-points 0 --out path
    """

    out: Path | None = None
    """Folder for figures and tables; needed."""


def run(options: Landscape) -> int:
    """Explore around every checkpoint, print a table, draw; 1 if an eigenvector has not converged."""
    _check(options)
    torch.set_num_threads(options.over.threads or default_threads())
    with CountBar() as bar:
        views = explore(options, pick_device(options.over.device), bar)
    _show(views, options)
    _write_folder(views, options)
    return 0 if all(view.record.get("converged", True) for view in views) else 1


def _check(options: Landscape) -> None:
    check_checkpoints(options.checkpoints, distinct=True)
    options.over.check(options.data)
    if options.directions == "between" and len(options.checkpoints) < 2:
        raise UserError("--directions between needs at least two checkpoints")
    for flag, points in (("--line-points", options.line_points), ("--plane-points", options.plane_points)):
        if points < 0 or points == 1:
            raise UserError(f"{flag} must be at least 2, or 0 for none, not {points}")
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


def _show(views: list[View], options: Landscape) -> None:
    """Print one line per view: loss and accuracy of the checkpoint, and the evidence for the directions."""
    over = options.over
    table = Table(title=f"{options.data.task}, {over.samples} {over.rows} rows, {options.directions}")
    table.add_column("checkpoint", overflow="fold")
    for heading in _cells(views[0].record):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in views:
        table.add_row(view.name, *_cells(view.record).values())
    result_console().print(table)


def _cells(record: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a view's line by heading."""
    if "other" in record:
        cells = {"loss at 0": f"{record['loss']:.4f}", "loss at 1": f"{record['other_loss']:.4f}"}
        cells |= {"accuracy at 0": _percent(record["accuracy"]), "accuracy at 1": _percent(record["other_accuracy"])}
        cells["distance"] = f"{record['distance']:.4g}"
        return cells | ({"barrier": f"{record['barrier']:.4f}"} if "barrier" in record else {})
    cells = {"loss": f"{record['loss']:.4f}", "accuracy": _percent(record["accuracy"])}
    if "eigenvalues" in record:
        cells["eigenvalues"] = "\n".join(f"{value:.5g}" for value in record["eigenvalues"])
        cells["residual"] = "\n".join(f"{value:.1e}" for value in record["residuals"])
        cells["converged"] = "yes" if record["converged"] else "NO"
    return cells


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2%}"


def _write_folder(views: list[View], options: Landscape) -> None:
    """Write the folder with tables and figures, complete or not at all."""
    assert options.out is not None
    from scala_lab.report.figures.style import save_figure

    over = options.over
    settings = {"task": options.data.task, "rows": over.rows, "samples": over.samples, "seed": over.seed}
    settings |= {"directions": options.directions, "span": list(options.x_span)}
    with new_folder(options.out) as folder:
        write_json(folder / "landscape.json", [{**settings, **view.record} for view in views])
        for name, points in (("line", options.line_points), ("plane", options.plane_points)):
            if points:
                _long_table(views, name).to_csv(folder / f"{name}.csv", index=False)
        for name, figure in _figures(views, options):
            save_figure(figure, folder / name)
    print(f"report: {options.out}", file=sys.stderr)


def _long_table(views: list[View], kind: str) -> pd.DataFrame:
    """Concatenate the lines or the planes of all views, checkpoints in the first columns."""
    import pandas

    parts = []
    for view in views:
        checkpoints = {name: view.record[name] for name in ("checkpoint", "other") if name in view.record}
        if kind == "line":
            parts += [line.assign(**checkpoints, direction=number) for number, line in enumerate(view.lines, start=1)]
        elif view.plane is not None:
            parts.append(view.plane.assign(**checkpoints))
    table = pandas.concat(parts, ignore_index=True)
    values = [name for name in ("position", "x", "y", "loss", "accuracy") if name in table]
    return table[[*table.columns.drop(values), *values]]


def _figures(views: list[View], options: Landscape) -> Iterator[tuple[str, Figure]]:
    """Draw all views into each figure; yield names and figures."""
    from scala_lab.report.figures.landscape import side_by_side, slice_1d_plot

    first = views[0]
    where = {
        "eigenvectors": "along top eigenvectors of the Hessian",
        "random": "in random filter-normalised directions",
        "between": "between checkpoints",
    }[options.directions]
    marks = (0.0, 1.0) if options.directions == "between" else (0.0,)
    values: list[Literal["loss", "accuracy"]] = ["loss"] if first.record["accuracy"] is None else ["loss", "accuracy"]
    for index, label in enumerate(first.directions[: len(first.lines)]):
        lines = {view.name: view.lines[index] for view in views}
        title = f"{' and '.join(values).capitalize()} {where}"
        yield f"line-{index + 1}", slice_1d_plot(lines, title, label, first.unit, marks=marks)
    planes = {view.name: view.plane for view in views if view.plane is not None}
    for value in values if planes else []:
        title = f"{value.capitalize()} {where}" + (", on one scale" if len(planes) > 1 else "")
        for kind in ("contour", "surface"):
            figure = side_by_side(planes, title, *first.directions, first.unit, kind=kind, value=value, marks=marks)
            yield f"{kind}-{value}", figure
