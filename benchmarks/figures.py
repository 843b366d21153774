"""A figure for each area: bars of what was judged, or curves where an area has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from measures import Measure, Result
from tables import SIGNS, number, value

from scala_lab.report.figures.style import COLOURS, DASHES, FILLS, HATCHES, MARKERS, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BETTER = {"at least": "longer is better", "at most": "shorter is better"}


def figure_of(result: Result) -> Figure:
    """The area's figure."""
    with styled():
        return curves_figure(result) if result.curves else bars_figure(result)


def bars_figure(result: Result) -> Figure:
    """One bar per measure; a diamond at its goal, a line at its limit. One panel per unit and direction."""
    panels: dict[tuple[str, str], list[Measure]] = {}
    for measure in result.measures:
        axis = f"{measure.unit}" if measure.ratio is None else "ratio"
        panels.setdefault((axis, measure.bound), []).append(measure)
    sizes = [len(measures) for measures in panels.values()]
    figure = new_figure(9.0, 1.0 + 0.85 * len(panels) + 0.5 * sum(sizes))
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": [size + 0.6 for size in sizes]})
    for ax, ((axis, bound), measures) in zip(axes[:, 0], panels.items(), strict=True):
        _bars(ax, measures)
        ax.set_xlabel(f"{axis} ({BETTER[bound]})")
    figure.suptitle(result.title)
    handles, labels = _legend(axes[:, 0])
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _legend(axes: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Each kind of mark once, over all panels."""
    marks: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            marks.setdefault(label, handle)
    return list(marks.values()), list(marks)


def _bars(ax: Axes, measures: Sequence[Measure]) -> None:
    places = [-place for place in range(len(measures))]
    for place, measure in zip(places, measures, strict=True):
        kind = {None: 2, True: 0, False: 1}[measure.met]
        label = {None: "for comparison", True: "goal met", False: "goal missed"}[measure.met]
        ax.barh(place, measure.judged, 0.6, color=FILLS[kind], hatch=HATCHES[kind], edgecolor="black", label=label)
        marks = [mark for mark in (measure.judged, measure.goal, measure.limit) if mark is not None]
        ax.annotate(_words(measure), (max(marks), place), (8, 0), textcoords="offset points", va="center", fontsize=8.5)
        if measure.goal is not None:
            ax.plot(measure.goal, place, "D", color="white", markeredgecolor="black", linestyle="none", label="goal")
        if measure.limit is not None:
            ax.plot([measure.limit] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2.5, label="limit")
    ax.set_yticks(places, [measure.name for measure in measures])
    ax.set_ylim(places[-1] - 0.6, 0.6)
    ax.set_xlim(0, 1.75 * max(max(measure.judged, measure.goal or 0, measure.limit or 0) for measure in measures))


def _words(measure: Measure) -> str:
    """The judged value, the goal, and what both sides are."""
    goal = "" if measure.goal is None else f" (goal {SIGNS[measure.bound]} {measure.goal:g})"
    if measure.ratio is None:
        return f"{value(measure.judged, measure.unit)}{goal}"
    ours, peer = value(measure.ours, measure.unit), value(measure.peer or 0.0, measure.unit)
    return f"{number(measure.ratio)}{goal}\n{ours}; {measure.peer_name}: {peer}"


def curves_figure(result: Result) -> Figure:
    """Small multiples on logarithmic axes: a row per quantity, a column per what grows, the slope beside each curve."""
    columns = list(dict.fromkeys(curve["against"] for curve in result.curves))
    rows = list(dict.fromkeys(curve["of"] for curve in result.curves))
    figure = new_figure(3.0 * len(columns), 2.7 * len(rows))
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    for curve in result.curves:
        ax = axes[rows.index(curve["of"]), columns.index(curve["against"])]
        _curve(ax, curve, rows.index(curve["of"]))
        if ax.get_subplotspec().is_last_row():
            ax.set_xlabel(curve["against"])
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(curve["of"])
    figure.suptitle(result.title)
    return figure


def _curve(ax: Axes, curve: Mapping[str, Any], kind: int) -> None:
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    x, y = curve["x"], curve["y"]
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.plot(x, y, color=COLOURS[kind], linestyle=DASHES[kind], marker=MARKERS[kind])
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_xticks(x)
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", labelrotation=35)
    ax.set_title(f"slope {curve['slope']:.2f}", fontsize=10)
    ax.grid(True, axis="y")
