"""Figures of accuracy: over batch sizes, rates, delays and ascent steps, by method, and against cost; divergence.

Whiskers are standard deviations over runs; differences between methods are judged by paired intervals, not by them:
`difference_figure` in forest.py draws those.
"""

import math
from typing import Any

import numpy as np

from scala_lab.report.figures import style
from scala_lab.report.figures.style import Axes, DataFrame, Figure

ACCURACY = "accuracy (%)"


@style.styled()
def lines_figure(
    frame: DataFrame,
    x: str,
    *,
    x_label: str,
    title: str,
    y: str = "score",
    y_label: str = ACCURACY,
    panel: str = "task",
    log_x: bool = False,
    log_y: tuple[str, ...] = (),
) -> Figure:
    """Draw a panel per task, in it a line per method through the means over runs, shifted a little from one another.

    `frame` has one row per run. Where x is not finite the mean is drawn as a level across the panel. `log_y` names the
    panels whose y axis is logarithmic.
    """
    style.require_columns(frame, x, y, "method", panel)
    panels, methods = list(frame.groupby(panel, sort=False)), list(dict.fromkeys(frame["method"]))
    figure = style.new_figure(max(4.6, 3.6 * len(panels)), 3.6)
    for axes, (shown, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        ticks = sorted({float(value) for value in rows[x] if math.isfinite(value)})
        first, last = min(ticks, default=1.0), max(ticks, default=1.0)
        for index, method in enumerate(methods):
            line = rows[rows["method"] == method]
            shift = 0.01 * (index - (len(methods) - 1) / 2)  # of the axis: whiskers of several lines do not overlap
            shifted = line[x] * (last / first) ** shift if log_x else line[x] + shift * (last - first)
            _line(axes, line.assign(**{x: shifted}), x, y, str(method), style.line_style(index, markersize=6))
        axes.set(xscale="log" if log_x else "linear", yscale="log" if shown in log_y else "linear")
        if len(ticks) <= 9:
            style.set_ticks(axes.xaxis, ticks)
        axes.set(title=str(shown), xlabel=x_label, ylabel=y_label if shown == panels[0][0] else "")
        axes.grid(axis="y")
    if len({label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]}) > 1:
        style.legend_below(figure, 4)
    figure.suptitle(title)
    return figure


@style.styled()
def cost_figure(frame: DataFrame, *, title: str) -> Figure:
    """Draw accuracy against cost, a panel per task.

    `frame` has one row per run: task, setting (its text is written beside the point), joined (whether a line passes
    through it), forward_passes and score.
    """
    style.require_columns(frame, "task", "setting", "joined", "forward_passes", "score")
    tasks = list(frame.groupby("task", sort=False))
    figure = style.new_figure(max(4.6, 3.8 * len(tasks)), 3.6)
    for axes, (task, rows) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for joined in (True, False):
            _cost_points(axes, rows[rows["joined"] == joined], joined)
        axes.margins(x=0.12, y=0.15)
        axes.set(title=task, xlabel="cost (forward passes over the rows)")
        axes.set_ylabel(ACCURACY if task == tasks[0][0] else "")
        axes.grid(axis="y")
    figure.suptitle(title)
    return figure


@style.styled()
def divergence_figure(frame: DataFrame, *, title: str) -> Figure:
    """Draw the divergence over training steps on a log scale: a line per method, the mean over its runs.

    `frame` has one row per run and step: method, step and divergence. Methods whose curves coincide differ in dash and
    mark.
    """
    style.require_columns(frame, "method", "step", "divergence")
    figure = style.new_figure(6.8, 4.4)
    axes = figure.subplots()
    for index, (method, rows) in enumerate(frame.groupby("method", sort=False)):
        means = rows.groupby("step")["divergence"].mean()
        marks = style.line_style(index, markersize=5, markevery=max(1, len(means) // 8), linewidth=1.3)
        axes.plot(means.index, means, label=str(method), **marks)
    axes.set(xlabel="step", ylabel="divergence r", yscale="log", title=title)
    axes.grid(axis="y")
    style.legend_below(figure, 2)
    return figure


def _line(axes: Axes, rows: DataFrame, x: str, y: str, name: str, look: dict[str, Any]) -> None:
    means = rows.groupby(x)[y].agg(["mean", "std"]).dropna(subset="mean").fillna(0.0)  # no spread of a single run
    points = means[np.isfinite(means.index)]
    if len(points):
        axes.errorbar(points.index, points["mean"], yerr=points["std"], capsize=3, elinewidth=0.9, label=name, **look)
    for value in means["mean"].drop(points.index):
        axes.axhline(value, label=name, color=look["color"], linestyle=look["linestyle"], linewidth=1.2)


def _cost_points(axes: Axes, rows: DataFrame, joined: bool) -> None:
    """Draw mean cost and accuracy of each setting, joined by a line or as stars."""
    columns = {"cost": ("forward_passes", "mean"), "score": ("score", "mean"), "std": ("score", "std")}
    points = rows.groupby("setting", sort=False).agg(**columns).dropna(subset="score").fillna({"std": 0.0})
    points = points.sort_values("cost", kind="stable")
    stars = {} if joined else {"linestyle": "none", "marker": "*"}
    look = style.line_style(0 if joined else 1, markersize=6 if joined else 13, **stars)
    if len(points):
        axes.errorbar(points["cost"], points["score"], yerr=points["std"], capsize=3, elinewidth=0.9, **look)
    for point in points.itertuples():
        offset = (4, 4) if joined else (5, -12)
        axes.annotate(point.Index, (point.cost, point.score), xytext=offset, textcoords="offset points", fontsize=8)


@style.styled()
def rate_heat_map(frame: DataFrame, title: str) -> Figure:
    """Draw batch sizes as rows, rates as columns, accuracy in percent in each cell.

    The best cell of a row has a frame, dashed where it is the first or last of the row. Cells whose runs diverged say
    so, missing ones are empty. Two lines start at the best rate of the smallest batch: the square-root rule and the
    linear rule. `frame` has one row per cell: batch_size, rate, score (mean over seeds, nan for none) and diverged.
    """
    style.require_columns(frame, "batch_size", "rate", "score", "diverged")
    scores = frame.pivot_table("score", "batch_size", "rate", dropna=False)
    diverged = frame.pivot_table("diverged", "batch_size", "rate", aggfunc="max").reindex_like(scores)
    sizes, rates = scores.index.to_numpy(float), scores.columns.to_numpy(float)
    figure = style.new_figure(1.8 + 0.75 * len(rates), 1.9 + 0.55 * len(sizes))
    axes = figure.subplots()
    centres = np.log(rates)
    halves = np.diff(centres) / 2 if len(centres) > 1 else np.array([0.5])  # cells meet half way between two rates
    edges = np.array([centres[0] - halves[0], *(centres[:-1] + halves), centres[-1] + halves[-1]])
    masked = np.ma.masked_invalid(scores)
    colours = axes.pcolormesh(edges, np.arange(len(sizes) + 1) - 0.5, masked, cmap=style.COLOURMAP)
    axes.set_facecolor(style.BAD)
    any_score = bool(scores.notna().any(axis=None))
    middle = np.nanmean(colours.get_clim()) if any_score else 0.0
    place: dict[str, Any] = {"ha": "center", "va": "center"}
    for y, (size, row) in enumerate(scores.iterrows()):
        for rate, score in row.items():
            if np.isfinite(score):
                colour = "white" if score < middle else "black"
                axes.text(np.log(rate), y - 0.22, f"{score:.1f}", fontsize=8, color=colour, zorder=6, **place)
            elif diverged.loc[size, rate] == 1:
                axes.text(np.log(rate), y, "diverged", fontsize=7, rotation=20, color="black", **place)
        if row.notna().any():
            _frame_best(axes, edges, y, int(np.nanargmax(row)), np.flatnonzero(diverged.loc[size].notna()))
    _rule_lines(axes, scores)
    axes.set_xticks(centres, [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(sizes)), [f"{size:,.0f}" for size in sizes])
    axes.set(xlim=(edges[0], edges[-1]), ylim=(-0.5, len(sizes) - 0.5))
    axes.set(title=title, xlabel="peak learning rate, log scale", ylabel="batch size")
    if any_score:
        figure.colorbar(colours, ax=axes, label=ACCURACY, pad=0.02)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def _frame_best(axes: Axes, edges: np.ndarray, row: int, column: int, tried: np.ndarray) -> None:
    from matplotlib.patches import Rectangle

    corner, width = (edges[column], row - 0.5), edges[column + 1] - edges[column]
    dash = "--" if len(tried) > 1 and column in (tried[0], tried[-1]) else "-"
    for thickness, colour in ((4.0, "white"), (2.0, "black")):
        look: dict[str, Any] = {"linewidth": thickness, "linestyle": dash, "edgecolor": colour}
        axes.add_patch(Rectangle(corner, width, 1.0, fill=False, zorder=3, **look))


def _rule_lines(axes: Axes, scores: DataFrame) -> None:
    """Draw the rates that the two rules predict from the best rate of the smallest batch."""
    first = scores.iloc[0]
    if len(scores) < 2 or not first.notna().any():
        return
    start, sizes = np.log(float(first.idxmax())), scores.index.to_numpy(float)
    for power, dash, name in ((0.5, "-", "square-root rule"), (1.0, ":", "linear rule")):
        predicted = start + power * np.log(sizes / sizes[0])
        axes.plot(predicted, range(len(sizes)), linestyle=dash, color="white", linewidth=2.8, zorder=4)
        axes.plot(predicted, range(len(sizes)), linestyle=dash, color="#a02020", linewidth=1.4, label=name, zorder=5)
