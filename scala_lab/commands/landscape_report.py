"""What `scala-lab landscape` saw, as a table, as files and as figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from scala_lab.commands.landscape_measure import View
from scala_lab.commands.summary import result_console
from scala_lab.files import new_folder, write_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scala_lab.commands.landscape_options import Landscape


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
    from scala_lab.report.saving import save_figure

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
    from scala_lab.report.line_figures import slice_1d_plot
    from scala_lab.report.plane_figures import side_by_side

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
