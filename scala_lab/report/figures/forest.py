"""Forest plots: estimates with their intervals, row by row, beside what the paper reports and what would count."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scala_lab.report.figures import style
from scala_lab.report.figures.style import Axes, Figure
from scala_lab.study.statistics import FACTOR
from scala_lab.study.verdicts import NO_EFFECT, NOT_TESTABLE, ClaimRecord, Part, Verdict

SIGNS: dict[Verdict, str] = {"supported": "✓", NO_EFFECT: "○", "reversed": "✗", "undecided": "~", NOT_TESTABLE: "·"}
"""The sign before each verdict, so that it can be read without colour."""
LOOKS: dict[Verdict, dict[str, Any]] = {
    "supported": {"color": "#1b6e41", "marker": "o"},
    NO_EFFECT: {"color": style.COLOURS[0], "marker": "o", "markerfacecolor": "white"},
    "reversed": {"color": "#9c2b1b", "marker": "X"},
    "undecided": {"color": "#8a6400", "marker": "s", "markerfacecolor": "white"},
    NOT_TESTABLE: {"color": "#a3a3a3", "marker": "x"},
}
UNITS = {"points": "points", FACTOR: "factor, log scale", "": "plain number"}
BAND, MAX_LABEL = "#d5deea", 62


@style.styled()
def forest_figure(claims: Sequence[ClaimRecord]) -> Figure:
    """Draw a row per part of each claim: differences in points on one axis, factors on a logarithmic one beside it.

    A part of a claim that is not testable here is grey, with the names of the gates that fail.
    """
    rows = [(claim, part, claim.verdict_of(part)) for claim in claims for part in claim.parts]
    parts, looks = [part for _, part, _ in rows], [LOOKS[verdict] for *_, verdict in rows]
    figure = draw_rows(parts, looks, [f"{row_label(part)}  {claim.claim.id}" for claim, part, _ in rows], 0.23)
    first, last = figure.axes[0], figure.axes[-1]
    for row, (claim, part, verdict) in enumerate(rows):
        colour = "#7a7a7a" if verdict == NOT_TESTABLE else "black"
        first.get_yticklabels()[row].set_color(colour)
        text = f"{SIGNS[verdict]} {_found(claim, part, verdict)}"
        last.text(1.03, row, text, transform=last.get_yaxis_transform(), va="center", fontsize=8, color=colour)
        if row and claim is not rows[row - 1][0]:
            for axes in figure.axes:
                axes.axhline(row - 0.5, color="#cccccc", linewidth=0.6)
    shown = {verdict for *_, verdict in rows}
    named = {f"{SIGNS[verdict]} {verdict}": LOOKS[verdict] for verdict in SIGNS if verdict in shown}
    figure.legend(handles=legend_handles(parts, named), loc="outside upper center", ncols=4)
    return figure


@style.styled()
def difference_figure(parts: Sequence[Part], *, title: str) -> Figure:
    """Draw paired comparisons, a row each: mean and interval, seeds as marks, the paper's value as an open diamond.

    Rows are parts as `effect`, `equivalent` and the like make them (scala_lab/study/verdicts.py), points and factors in
    panels of their own. Zero is a line, the smallest effect of interest a dotted one, a claimed range or margin a band.
    """
    look: dict[str, Any] = {"color": style.COLOURS[0], "marker": "o"}
    seed: dict[str, Any] = {"color": "#666666", "marker": "|", "linestyle": "none"}
    figure = draw_rows(parts, [look] * len(parts), [row_label(part) for part in parts], 0.42)
    for row, part in enumerate(parts):
        axes = next(axes for axes in figure.axes if axes.get_label() == part.estimate.unit)
        axes.plot(part.estimate.numbers, [row + 0.3] * len(part.estimate.numbers), markersize=7, **seed)
    handles = legend_handles(parts, {"mean and interval": look, "one seed": seed})
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.suptitle(title)
    return figure


def draw_rows(parts: Sequence[Part], looks: Sequence[Mapping[str, Any]], labels: list[str], height: float) -> Figure:
    """Draw a row per part, in the panel of its unit."""
    units = [unit for unit in UNITS if any(part.estimate.unit == unit for part in parts)]
    figure = style.new_figure(5.0 + 2.8 * len(units), 2.0 + height * len(parts))
    for axes, unit in zip(figure.subplots(1, len(units), squeeze=False, sharey=True)[0], units, strict=True):
        axes.set_label(unit)
        _set_axis(axes, [part for part in parts if part.estimate.unit == unit])
        for row, (part, look) in enumerate(zip(parts, looks, strict=True)):
            if part.estimate.unit == unit:
                _draw_part(axes, row, part, look)
        style.label_rows(axes, labels)
        axes.tick_params(labelleft=unit == units[0])
    return figure


def _draw_part(axes: Axes, row: int, part: Part, look: Mapping[str, Any]) -> None:
    """Draw an estimate with what it is compared with; an interval that leaves the axis ends in an arrow."""
    left, right = axes.get_xlim()
    estimate = part.estimate
    if part.kind == "range":
        low, high = max(left, part.low), min(right, part.high)
        axes.fill_betweenx([row - 0.38, row + 0.38], low, high, color=BAND, linewidth=0, zorder=0.5)
    elif part.smallest is not None:
        axes.plot([part.smallest] * 2, [row - 0.38, row + 0.38], ":", color="black", linewidth=1.3)
    if estimate.decided:
        axes.plot(np.clip([estimate.low, estimate.high], left, right), [row, row], color=look["color"], linewidth=1.6)
        for end, beyond, arrow in ((left, estimate.low < left, "<"), (right, estimate.high > right, ">")):
            if beyond:
                axes.plot(end, row, arrow, color=look["color"], markersize=6, clip_on=False)
    if left <= estimate.value <= right:
        axes.plot(estimate.value, row, **look, linestyle="none", markersize=5.5)
    if part.paper is not None:
        axes.plot(part.paper, row, "D", color="black", markerfacecolor="none", markersize=6.5)


def _set_axis(axes: Axes, parts: Sequence[Part]) -> None:
    """Choose an axis on which the paper's values and most intervals fit: one wild interval must not hide the rest."""
    position, natural, unit = parts[0].estimate.position, parts[0].estimate.natural, parts[0].estimate.unit
    wanted = [value for part in parts for value in (part.null, part.smallest, part.estimate.value)]
    wanted += [end for part in parts for end in part.interval or ()]
    wanted += [end for part in parts if part.kind == "range" for end in (part.low, part.high)]
    papers = [position(part.paper) for part in parts if part.paper is not None]
    places = [position(value) for value in wanted if value is not None]
    places = [place for place in (*places, *papers) if math.isfinite(place)]
    most = 3 * float(np.quantile(np.abs(places), 0.8)) or 1.0
    fitting = [*(min(max(place, -most), most) for place in places), *filter(math.isfinite, papers)]
    space = 0.08 * (max(fitting) - min(fitting)) or 1.0
    if unit == FACTOR:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(2, numticks=7))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlim=(natural(min(fitting) - space), natural(max(fitting) + space)), xlabel=UNITS[unit])
    axes.axvline(parts[0].null, color="black", linewidth=0.9)


def row_label(part: Part) -> str:
    """Return the label of a part's row."""
    statement = f"{part.statement} (context)" if part.contextual else part.statement
    return textwrap.shorten(statement, MAX_LABEL, placeholder="…")


def _found(claim: ClaimRecord, part: Part, verdict: Verdict) -> str:
    if verdict == NOT_TESTABLE:
        return ", ".join(gate.name for gate in claim.failed) or "not measured"
    estimate, sign = part.estimate, "+" if part.estimate.unit == "points" else ""
    ends = f" [{estimate.low:{sign}.2g}, {estimate.high:{sign}.2g}]" if estimate.decided else ""
    return f"{estimate.value:{sign}.2g}{ends}"


def legend_handles(parts: Sequence[Part], looks: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return the entries of a legend: the given ones, and those of what the parts are compared with."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    named: dict[str, Mapping[str, Any]] = dict(looks)
    if any(part.paper is not None for part in parts):
        named["the paper"] = {"color": "black", "marker": "D", "markerfacecolor": "none", "linestyle": "none"}
    if any(part.smallest is not None for part in parts):
        named["smallest effect that counts"] = {"color": "black", "linestyle": ":"}
    handles: list[Any] = [Line2D([], [], label=name, **look) for name, look in named.items()]
    ranges = any(part.kind == "range" for part in parts)
    return [*handles, Patch(color=BAND, label="claimed range or margin")] if ranges else handles
