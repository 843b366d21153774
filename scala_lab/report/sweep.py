"""What a sweep leaves beside its runs: one table of all of them, heat maps, best settings, and a page that shows it.

The best settings are chosen by the mean over seeds on tuning rows, where the runs have some, and reported on held-out
rows, where they have some; where both are the same rows, tables and page say so.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from scala_lab.config import RunSpec, flat_settings
from scala_lab.data.tasks import metrics_of
from scala_lab.errors import UserError, nearest
from scala_lab.files import write_bytes, write_text
from scala_lab.report.chapter import Piece, table_piece
from scala_lab.report.figures.grid import axis_figure, axis_text, axis_values, heat_map_figure
from scala_lab.report.figures.style import figure_files
from scala_lab.report.page import PAGE, environment_rows, locked, templates, write_pieces
from scala_lab.study.api import Tabulation
from scala_lab.study.statistics import LEVEL, Estimate, mean_interval
from scala_lab.sweep.frame import load_runs
from scala_lab.sweep.grid import Point, SweepFolder, left_out_text

if TYPE_CHECKING:
    from pandas import DataFrame

RUNS_CSV, RUNS_PARQUET, FIGURES = "runs.csv", "runs.parquet", "figures"
TABLES = ("best", "settings")
TABLE_FILES = [name + ending for name in TABLES for ending in (".csv", ".md", ".tex")]
WRITTEN = (RUNS_CSV, RUNS_PARQUET, *TABLE_FILES, FIGURES, PAGE)
"""What is written into a sweep's folder when its runs have ended, in this order."""

SPLIT_NAMES = {"heldout": "held-out", "dev_matched": "matched dev"}
BEST_FOR = ("task", "model", "method")


@dataclass(frozen=True)
class View:
    """How a sweep is shown; what is not given follows from its axes."""

    rows: str | None = None
    """Axis down the heat map; default batch_size, else the axis with most numbers."""
    columns: str | None = None
    """Axis along the heat map; default lr, else the axis with the next most numbers. Other axes make panels."""
    metric: str | None = None
    """What is shown and chosen by: a metric of the task, or loss; default the task's first metric."""
    best_for: tuple[str, ...] = ()
    """Axes for each of whose values the best settings are listed; default task, model and method where they vary."""

    def over(self, stored: Mapping[str, Any]) -> View:
        """Return this view with what it leaves open as it is stored."""
        rows, columns, metric = (getattr(self, name) or stored.get(name) for name in ("rows", "columns", "metric"))
        rows, columns = (name and name.replace("-", "_") for name in (rows, columns))
        best_for = self.best_for or stored.get("best_for") or ()
        return View(rows, columns, metric, tuple(name.replace("-", "_") for name in best_for))

    def check(self, sweep: SweepFolder) -> None:
        """Refuse axes that the sweep does not have and a metric that its tasks do not have."""
        axes = sweep.axes
        named = {"rows": [self.rows], "columns": [self.columns], "best-for": self.best_for}
        for flag, name in ((flag, name) for flag, names in named.items() for name in names):
            if name is not None and name not in axes:
                known = nearest(name, axes) if axes else "it has none"
                raise UserError(f"--{flag} {name} is no axis of this sweep: {known}")
        if self.rows is not None and self.rows == self.columns:
            raise UserError(f"--rows and --columns are both {self.rows}: choose two axes")
        if self.metric is None:
            return
        tasks = {(spec.data.task, spec.data.regression) for point in sweep.points for spec in point.specs[:1]}
        for task, regression in sorted(tasks):
            metrics = (*metrics_of(task, regression), "loss")
            if self.metric not in metrics:
                of = Path(task).name
                raise UserError(f"--metric {self.metric} is no metric of {of}: {nearest(self.metric, metrics)}")

    def axes_of_map(self, frame: DataFrame, axes: Sequence[str]) -> tuple[str, str]:
        """Return the axes down and along the heat map."""
        values = {name: axis_values(frame[name]) for name in axes}
        numeric = {name: all(not isinstance(one, (str, bool)) for one in values[name]) for name in axes}
        ranked = sorted(axes, key=lambda name: (not numeric[name], -len(values[name])))
        columns, rows = self.columns, self.rows
        if columns is None:
            columns = next(name for name in ("lr", *ranked) if name in axes and name != rows)
        if rows is None:
            rows = next(name for name in ("batch_size", *ranked) if name in axes and name != columns)
        return rows, columns


@dataclass(frozen=True)
class Measured:
    """The metric of a sweep, the rows that settings are chosen on and those that are reported, by task."""

    metric: str | None
    names: tuple[str, ...]
    chosen_on: str
    reported_on: str

    @classmethod
    def of(cls, specs: Sequence[RunSpec], metric: str | None) -> Measured:
        """Return what the runs of a sweep allow: splits that only some of them have are not used."""
        names = dict.fromkeys(metric or metrics_of(spec.data.task, spec.data.regression)[0] for spec in specs)
        dev = "dev_matched" if all(spec.data.task == "mnli" for spec in specs) else "dev"
        tuning, heldout = (
            all(getattr(spec.data, f"{name}_samples") for spec in specs) for name in ("tuning", "heldout")
        )
        return cls(metric, tuple(names), "tuning" if tuning else dev, "heldout" if heldout else dev)

    @property
    def lower_is_better(self) -> bool:
        """Whether the best is the least."""
        return self.metric == "loss"

    @property
    def name(self) -> str:
        """The metric, or `score` where tasks have different ones."""
        return self.names[0] if len(self.names) == 1 else "score"

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return (
            "loss"
            if self.lower_is_better
            else f"{self.name} (%)"
            if self.name in ("accuracy", "f1")
            else f"100 x {self.name}"
        )

    def rows_of(self, split: str) -> str:
        """Name rows in a sentence: `held-out rows`."""
        return f"{SPLIT_NAMES.get(split, split)} rows"

    def scores(self, runs: DataFrame, split: str) -> Estimate:
        """Return the mean over the finished runs of a point, in percent unless it is a loss."""
        values = []
        for run in runs.to_dict("records"):
            name = self.metric or metrics_of(run["task"], bool(run["regression"]))[0]
            found = f"{split}_{name}"
            if split == "dev" and run["task"] == "mnli":
                found = f"dev_matched_{name}"
            values.append(run.get(found, math.nan) * (1 if self.lower_is_better else 100))
        return mean_interval(values)


def write_sweep(sweep: SweepFolder) -> tuple[DataFrame, Piece]:
    """Write tables, figures and page of the runs that a sweep has so far; return its runs and the table of the best."""
    runs = load_runs(sweep.folder)
    view = View().over(sweep.view)
    measured = Measured.of([spec for point in sweep.points for spec in point.specs], view.metric)
    points = point_frame(sweep, runs, measured)
    axes = sweep.axes
    best = best_points(points, axes, view, measured)
    points["chosen"] = points.index.isin(best.index)
    notes = _notes(sweep, points, measured)
    tables = [
        table_piece(
            "best", Tabulation("", _shown(best, axes, view, measured, ends=points), _best_caption(measured), notes)
        ),
        table_piece(
            "settings",
            Tabulation("", _shown(points, axes, view, measured), "All settings, means over seeds.", notes[1:]),
        ),
    ]
    figures = _figures(points, axes, view, measured)
    parquet = io.BytesIO()
    runs.to_parquet(parquet, index=False)
    with locked(sweep.folder, WRITTEN):
        write_text(sweep.folder / RUNS_CSV, runs.to_csv(index=False, lineterminator="\n"))
        write_bytes(sweep.folder / RUNS_PARQUET, parquet.getvalue())
        for piece in tables:
            for ending, content in piece.files.items():
                write_bytes(sweep.folder / f"{piece.stem}{ending}", content)
        write_pieces(sweep.folder / FIGURES, figures)
        write_text(sweep.folder / PAGE, _page(sweep, runs, measured, figures, tables))
    return runs, tables[0]


def point_frame(sweep: SweepFolder, runs: DataFrame, measured: Measured) -> DataFrame:
    """Return one row per point: its axes, how its runs ended, means and interval over the seeds that finished."""
    by_id = runs.set_index("id")
    rows = []
    for point in sweep.points:
        own = by_id.loc[[spec.run_id for spec in point.specs if spec.run_id in by_id.index]]
        statuses = own["status"].value_counts()
        finished = own[own["status"] == "finished"]
        chosen, reported = (measured.scores(finished, split) for split in (measured.chosen_on, measured.reported_on))
        low, high = reported.interval
        rows.append(
            {
                **_axis_settings(point, sweep.axes),
                "runs": len(point.specs),
                **{status: int(statuses.get(status, 0)) for status in ("finished", "diverged", "failed")},
                "selection": chosen.value,
                "value": reported.value,
                "low": low,
                "high": high,
                "seconds": float(finished["train_seconds"].mean()) if len(finished) else math.nan,
            }
        )
    return pd.DataFrame(rows)


def _axis_settings(point: Point, axes: Sequence[str]) -> dict[str, Any]:
    settings = flat_settings(point.specs[0].resolved())
    values = {name: settings[name] for name in axes}
    return {name: axis_text(value) if isinstance(value, (tuple, Path)) else value for name, value in values.items()}


def best_points(points: DataFrame, axes: Sequence[str], view: View, measured: Measured) -> DataFrame:
    """Return the best point for each combination of the axes `best_for`; only points whose runs all finished count."""
    groups = _best_for(axes, view)
    whole = points[(points["finished"] == points["runs"]) & points["selection"].notna()]
    sign = -1 if measured.lower_is_better else 1
    ranked = whole.assign(rank=sign * whole["selection"]).sort_values("rank", ascending=False, kind="stable")
    ranked = ranked.drop_duplicates(groups) if groups else ranked.head(1)
    order = {name: [axis_text(value) for value in axis_values(points[name])] for name in groups}
    places = {
        index: [values.index(axis_text(row[name])) for name, values in order.items()]
        for index, row in ranked.iterrows()
    }
    return points.loc[sorted(places, key=lambda index: places[index])]


def _best_for(axes: Sequence[str], view: View) -> list[str]:
    return list(view.best_for) or [name for name in BEST_FOR if name in axes]


def _shown(
    points: DataFrame, axes: Sequence[str], view: View, measured: Measured, ends: DataFrame | None = None
) -> DataFrame:
    """Return points under the headings of a table; for best settings, with the axes at whose end they lie in `ends`."""
    groups = _best_for(axes, view) if ends is not None else []
    order = [*groups, *(name for name in axes if name not in groups)]
    table = {name.replace("_", " "): points[name] for name in order}
    table |= {"runs": points["runs"]} | {name: points[name] for name in ("diverged", "failed") if points[name].any()}
    if measured.chosen_on != measured.reported_on:
        table[f"{SPLIT_NAMES.get(measured.chosen_on, measured.chosen_on)} {measured.name}"] = points["selection"]
    table[f"{SPLIT_NAMES.get(measured.reported_on, measured.reported_on)} {measured.name}"] = points["value"]
    table |= {"from": points["low"], "to": points["high"], "train seconds": points["seconds"]}
    if ends is not None:
        table["at the end of"] = pd.Series(
            [_at_end(point, ends, groups, order) for point in points.to_dict("records")],
            index=points.index,
            dtype=object,
        )
    return pd.DataFrame(table)


def _at_end(point: Mapping[Any, Any], points: DataFrame, groups: Sequence[str], axes: Sequence[str]) -> str | None:
    """Name the axes of numbers that have no value beyond one of the point's: the grid may have to go on there."""
    found = []
    for name in axes:
        tried = points
        for group in groups:
            tried = tried[tried[group] == point[group]] if point[group] == point[group] else tried[tried[group].isna()]
        values = [value for value in axis_values(tried[name]) if value is not None]
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        if numeric and len(values) > 2 and point[name] in (values[0], values[-1]):
            found.append(name.replace("_", " "))
    return ", ".join(found) or None


def _best_caption(measured: Measured) -> str:
    return (
        f"Best settings by mean {measured.name} over seeds, chosen on {measured.rows_of(measured.chosen_on)}, "
        f"reported on {measured.rows_of(measured.reported_on)}."
    )


def _notes(sweep: SweepFolder, points: DataFrame, measured: Measured) -> list[str]:
    """Say what the figures are worth: on which rows settings were chosen, the interval, and what is missing."""
    if measured.chosen_on == measured.reported_on:
        notes = [
            f"Chosen and reported on the same {measured.rows_of(measured.reported_on)}: the best figure gains from the "
            "choice itself. --tuning-samples N keeps training rows apart to choose on, --heldout-samples N others to "
            "report on."
        ]
    else:
        notes = [f"The {measured.rows_of(measured.reported_on)} had no part in the choice."]
    most = int(points["runs"].max())
    if most > 1:
        notes.append(f"From and to: {100 * LEVEL:g}% interval of the mean over seeds (Student's t).")
    else:
        notes.append("One seed per setting: there is no interval, and differences may be chance. --seeds 5 runs five.")
    lost = points[points["finished"] < points["runs"]]
    if len(lost):
        count = f"{len(lost)} of {len(points)} settings have"
        notes.append(
            f"{count} a run that diverged, failed or has not ended: they are not chosen, their means are of the rest."
        )
    left_out = sweep.left_out()
    if left_out:
        notes.append(left_out_text(left_out))
    return notes


def _figures(points: DataFrame, axes: Sequence[str], view: View, measured: Measured) -> list[Piece]:
    """Draw the heat maps, or with one axis the line."""
    shown = points[[*axes, "value", "low", "high", "runs", "diverged", "failed", "chosen"]]
    if not axes:
        return []
    where, seeds = measured.rows_of(measured.reported_on), int(points["runs"].max())
    title = f"{measured.name} on {where}"
    over = f", ± half of its {100 * LEVEL:g}% interval" if seeds > 1 else ""
    mean = (
        f"Mean {measured.label} over {seeds} seeds on {where}"
        if seeds > 1
        else f"{measured.label} on {where}, one seed"
    )
    mean = mean[0].upper() + mean[1:]
    if len(axes) == 1:
        caption = f"{mean}{over}, by {axes[0].replace('_', ' ')}. The best setting is filled."
        return [Piece("line", caption, figure_files(axis_figure(shown, axes[0], title=title, label=measured.label)))]
    rows, columns = view.axes_of_map(points, axes)
    drawn = heat_map_figure(shown, rows, columns, title=title, label=measured.label)
    caption = (
        f"{mean}{over}, by {rows.replace('_', ' ')} and {columns.replace('_', ' ')}. Framed: best settings, dashed "
        "where they lie at the end of an axis. Grey: no mean."
    )
    stems = ["heat-map", *(f"heat-map-{number}" for number in range(2, len(drawn) + 1))]
    return [Piece(stem, caption, figure_files(figure)) for stem, figure in zip(stems, drawn, strict=True)]


def _page(
    sweep: SweepFolder, runs: DataFrame, measured: Measured, figures: Sequence[Piece], tables: Sequence[Piece]
) -> str:
    cells = sweep.cells()
    records = sweep.store.records(cells)
    statuses = runs["status"].value_counts().to_dict()
    statuses["missing"] = len(cells) - sum(count for status, count in statuses.items())
    spec = sweep.grids[-1].fixed
    content = {
        "title": sweep.folder.absolute().name,
        "sweep": sweep,
        "axes": {name: _texts(runs[name]) for name in sweep.axes},
        "seeds": sorted({cell.item.seed for cell in cells if isinstance(cell.item, RunSpec)}),
        "task": Path(spec.data.task).name,
        "model": Path(spec.encoder.model).name,
        "statuses": statuses,
        "count": len(cells),
        "worth": tables[0].notes[0],
        "figures": figures,
        "tables": {piece.stem: replace(piece, notes=piece.notes[1:] if piece is tables[0] else ()) for piece in tables},
        "records": records,
        "environment": environment_rows(records),
        "files": (RUNS_CSV, RUNS_PARQUET, "best.csv", "settings.csv"),
    }
    return templates([], []).get_template("sweep.html.j2").render(content)


def _texts(column: pd.Series) -> list[str]:
    """Write the values of an axis, without that of methods which do not have it."""
    return [axis_text(value) for value in axis_values(column.dropna())]
