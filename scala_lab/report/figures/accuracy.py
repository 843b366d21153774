"""Figures of accuracy: over batch sizes, rates, delays and ascent steps, by method, and against what it costs.

Figures of accuracy: over batch sizes, delays and ascent steps, by method, and against what it costs.

Whiskers are standard deviations over runs: what differs between methods is judged by paired intervals, not by them.

The heat map of accuracy over batch size and learning rate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError
from scala_lab.report.figures.style import BAD, COLOURMAP, COLOURS, DASHES, MARKERS, new_figure, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ACCURACY = "accuracy (%)"


def lines_figure(
    frame: pd.DataFrame,
    x: str,
    *,
    x_label: str,
    title: str,
    y: str = "score",
    y_label: str = ACCURACY,
    by: str = "method",
    panel: str = "task",
    log_x: bool = False,
    log_y: tuple[str, ...] = (),
) -> Figure:
    """A panel per task; in it a line per method through the means over runs, a little apart where they coincide.

    Args:
        frame: One row per run. Where x is not finite the mean is drawn as a level across the panel.
        x: Column of the position.
        x_label: Under the panels.
        title: Over the figure.
        y: Column of the height.
        y_label: Beside the first panel.
        by: Column that tells lines apart.
        panel: Column that tells panels apart.
        log_x: Logarithmic positions, with a tick at each.
        log_y: Panels with a logarithmic height.
    """
    _require(frame, x, y, by, panel)
    panels, names = list(dict.fromkeys(frame[panel])), list(dict.fromkeys(frame[by]))
    with styled():
        figure = new_figure(max(4.6, 3.6 * len(panels)), 3.6)
        for place, axes in enumerate(figure.subplots(1, len(panels), squeeze=False)[0]):
            rows = frame[frame[panel] == panels[place]]
            ticks = sorted({float(value) for value in rows[x] if math.isfinite(value)})
            for number, name in enumerate(names):
                aside = number - (len(names) - 1) / 2
                here = rows[rows[by] == name]
                here = here.assign(**{x: _moved(here[x].to_numpy(float), ticks, aside, log_x)})
                _line(axes, here, x, y, str(name), _look(number))
            if log_x:
                axes.set_xscale("log")
            if len(ticks) <= 9:
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
                axes.set_xticks([], minor=True)
            if panels[place] in log_y:
                axes.set_yscale("log")
            axes.set_title(str(panels[place]))
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label if place == 0 else "")
            axes.grid(axis="y")
        _finish(figure, title)
    return figure


def dots_figure(frame: pd.DataFrame, *, title: str, y: str = "score", y_label: str = ACCURACY) -> Figure:
    """A panel per task; in it a row per method with each run as a small mark, and the mean.

    Args:
        frame: One row per run: task, method and y.
        title: Over the figure.
        y: Column of the position.
        y_label: Under the panels.
    """
    _require(frame, "task", "method", y)
    tasks, methods = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["method"]))
    with styled():
        figure = new_figure(1.9 + 2.1 * len(tasks), 1.6 + 0.36 * len(methods))
        panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
        for axes, task in zip(panels, tasks, strict=True):
            for place, method in enumerate(methods):
                values = frame[(frame["task"] == task) & (frame["method"] == method)][y].to_numpy(float)
                axes.plot(values, np.full(len(values), place), "|", color="#777777", markersize=9)
                _dot(axes, values, place)
            axes.set_title(task)
            axes.set_xlabel(y_label)
            axes.grid(axis="x")
            axes.set_ylim(len(methods) - 0.5, -0.5)
        panels[0].set_yticks(range(len(methods)), methods)
        figure.suptitle(title)
    return figure


def cost_figure(frame: pd.DataFrame, *, title: str, cost_label: str = "cost (forward passes over the rows)") -> Figure:
    """Accuracy against cost, a panel per task: settings of one kind joined by a line, others marked on their own.

    Args:
        frame: One row per run: task, setting (its text stands beside the point), joined (whether the line passes
            through it), forward_passes and score.
        title: Over the figure.
        cost_label: Under the panels.
    """
    _require(frame, "task", "setting", "joined", "forward_passes", "score")
    tasks = list(dict.fromkeys(frame["task"]))
    with styled():
        figure = new_figure(max(4.6, 3.8 * len(tasks)), 3.6)
        for place, (axes, task) in enumerate(zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True)):
            rows = frame[frame["task"] == task]
            for number, joined in enumerate((True, False)):
                _cost_line(axes, rows[rows["joined"] == joined], number)
            axes.margins(x=0.12, y=0.15)
            axes.set_title(task)
            axes.set_xlabel(cost_label)
            axes.set_ylabel(ACCURACY if place == 0 else "")
            axes.grid(axis="y")
        figure.suptitle(title)
    return figure


def _require(frame: pd.DataFrame, *columns: str) -> None:
    for column in columns:
        if column not in frame:
            raise UserError(f"the figure's table needs a column {column}: it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise UserError("the figure's table has no rows")


def _look(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markerfacecolor": "white",
        "markersize": 6,
    }


def _mean_and_spread(values: Any) -> tuple[float, float]:
    """Mean and standard deviation of the finite values; a single one has no spread."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if len(finite) == 0:
        return math.nan, 0.0
    return float(finite.mean()), float(finite.std(ddof=1)) if len(finite) > 1 else 0.0


def _moved(places: np.ndarray, ticks: list[float], aside: float, log_x: bool) -> np.ndarray:
    """Positions moved by a hundredth of the axis times `aside`, so that whiskers of several lines stand apart."""
    if len(ticks) < 2:
        return places
    if log_x:
        return places * (ticks[-1] / ticks[0]) ** (0.01 * aside)
    return places + 0.01 * aside * (ticks[-1] - ticks[0])


def _line(axes: Axes, rows: pd.DataFrame, x: str, y: str, name: str, look: dict[str, Any]) -> None:
    means = [(float(place), *_mean_and_spread(values)) for place, values in rows.groupby(x)[y]]
    means = [point for point in means if math.isfinite(point[1])]
    points = [point for point in means if math.isfinite(point[0])]
    if points:
        places, values, spreads = zip(*points, strict=True)
        axes.errorbar(places, values, yerr=spreads, capsize=3, elinewidth=0.9, label=name, **look)
    for place, value, _ in means:
        if not math.isfinite(place):
            axes.axhline(value, label=name, color=look["color"], linestyle=look["linestyle"], linewidth=1.2)


def _dot(axes: Axes, values: np.ndarray, place: int) -> None:
    mean, spread = _mean_and_spread(values)
    if math.isfinite(mean):
        axes.errorbar(mean, place, xerr=spread, fmt="o", color=COLOURS[0], markerfacecolor="white", capsize=3)


def _cost_line(axes: Axes, rows: pd.DataFrame, number: int) -> None:
    points = []
    for setting, runs in rows.groupby("setting", sort=False):
        score, spread = _mean_and_spread(runs["score"])
        if math.isfinite(score):
            points.append((_mean_and_spread(runs["forward_passes"])[0], score, spread, str(setting)))
    points.sort(key=lambda point: point[0])
    if not points:
        return
    look = _look(number)
    if number:
        look |= {"linestyle": "none", "marker": "*", "markersize": 13}
    costs, scores, spreads, settings = zip(*points, strict=True)
    axes.errorbar(costs, scores, yerr=spreads, capsize=3, elinewidth=0.9, **look)
    for cost, score, setting in zip(costs, scores, settings, strict=True):
        place = (5, -12) if number else (4, 4)
        axes.annotate(setting, (cost, score), xytext=place, textcoords="offset points", fontsize=8)


def _finish(figure: Figure, title: str) -> None:
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if len(handles) > 1:
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(4, len(handles)))
    figure.suptitle(title)


def rate_heat_map(frame: pd.DataFrame, title: str = "Accuracy over batch size and learning rate") -> Figure:
    """Batch sizes as rows, rates as columns, accuracy in percent in each cell.

    The best cell of a row has a frame, dashed where it is the first or last of the grid. Cells whose runs diverged are
    hatched, missing ones empty. Two lines start at the best rate of the smallest batch: the square-root rule and the
    linear rule.

    Args:
        frame: One row per cell: batch_size, rate, score (mean over seeds; nan where there is none) and diverged.
        title: Over the figure.
    """
    for column in ("batch_size", "rate", "score", "diverged"):
        if column not in frame:
            raise UserError(f"the heat map's table needs a column {column}: it has {', '.join(map(str, frame))}")
    scores = frame.pivot_table("score", "batch_size", "rate", dropna=False)
    diverged = frame.pivot_table("diverged", "batch_size", "rate", aggfunc="max").reindex_like(scores)
    sizes, rates = scores.index.to_numpy(float), scores.columns.to_numpy(float)
    with styled():
        figure = new_figure(1.8 + 0.75 * len(rates), 1.9 + 0.55 * len(sizes))
        axes = figure.subplots()
        colours = axes.pcolormesh(
            _edges(np.log(rates)), np.arange(len(sizes) + 1) - 0.5, np.ma.masked_invalid(scores), cmap=COLOURMAP
        )
        axes.set_facecolor(BAD)
        middle = np.nanmean(colours.get_clim()) if np.isfinite(scores.to_numpy()).any() else 0.0
        for place, (size, row) in enumerate(scores.iterrows()):
            for rate, score in row.items():
                _write(axes, np.log(rate), place, score, bool(diverged.loc[size, rate] == 1), score < middle)
            if row.notna().any():
                _frame_best(axes, _edges(np.log(rates)), place, int(np.nanargmax(row)), len(rates))
        _rule_lines(axes, scores)
        axes.set_xticks(np.log(rates), [f"{rate:g}" for rate in rates])
        axes.set_yticks(range(len(sizes)), [f"{size:,.0f}" for size in sizes])
        axes.set_xlim(_edges(np.log(rates))[0], _edges(np.log(rates))[-1])
        axes.set_ylim(-0.5, len(sizes) - 0.5)
        axes.set_xlabel("peak learning rate, log scale")
        axes.set_ylabel("batch size")
        axes.set_title(title)
        if np.isfinite(scores.to_numpy()).any():
            figure.colorbar(colours, ax=axes, label="accuracy (%)", pad=0.02)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=2)
    return figure


def _edges(centres: np.ndarray) -> np.ndarray:
    """Borders half way between neighbours."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    between = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - between[0], *between, 2 * centres[-1] - between[-1]])


def _write(axes: Axes, x: float, y: float, score: float, diverged: bool, dark: bool) -> None:
    if np.isfinite(score):
        colour = "white" if dark else "black"
        axes.text(x, y - 0.22, f"{score:.1f}", ha="center", va="center", fontsize=8, color=colour, zorder=6)
    elif diverged:
        axes.text(x, y, "diverged", ha="center", va="center", fontsize=7, rotation=20, color="black")


def _frame_best(axes: Axes, edges: np.ndarray, place: int, column: int, columns: int) -> None:
    from matplotlib.patches import Rectangle

    edge = columns > 1 and column in (0, columns - 1)
    corner, width = (edges[column], place - 0.5), edges[column + 1] - edges[column]
    style = "--" if edge else "-"
    for line, colour in ((4.0, "white"), (2.0, "black")):
        axes.add_patch(
            Rectangle(corner, width, 1.0, fill=False, linewidth=line, linestyle=style, edgecolor=colour, zorder=3)
        )


def _rule_lines(axes: Axes, scores: pd.DataFrame) -> None:
    """Rates that the two rules would carry over from the best one of the smallest batch."""
    first = scores.iloc[0]
    if len(scores) < 2 or not first.notna().any():
        return
    start, sizes = np.log(float(first.idxmax())), scores.index.to_numpy(float)
    for power, dash, name in ((0.5, "-", "square-root rule"), (1.0, ":", "linear rule")):
        across = start + power * np.log(sizes / sizes[0])
        axes.plot(across, range(len(sizes)), linestyle=dash, color="white", linewidth=2.8, zorder=4)
        axes.plot(across, range(len(sizes)), linestyle=dash, color="#a02020", linewidth=1.4, label=name, zorder=5)
