"""Forest plots: estimates with their intervals, row by row, beside what the paper reports and what would count."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.report.figures.style import COLOURS, label_rows, new_figure, styled
from scala_lab.study.statistics import FACTOR
from scala_lab.study.verdicts import NO_EFFECT, NOT_TESTABLE, ClaimRecord, Part, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIGNS: dict[Verdict, str] = {"supported": "✓", NO_EFFECT: "○", "reversed": "✗", "undecided": "~", NOT_TESTABLE: "·"}
"""The sign before each verdict, so that it can be read without colour."""
LOOKS: dict[Verdict, dict[str, Any]] = {
    "supported": {"color": "#1b6e41", "marker": "o"},
    NO_EFFECT: {"color": COLOURS[0], "marker": "o", "markerfacecolor": "white"},
    "reversed": {"color": "#9c2b1b", "marker": "X"},
    "undecided": {"color": "#8a6400", "marker": "s", "markerfacecolor": "white"},
    NOT_TESTABLE: {"color": "#a3a3a3", "marker": "x"},
}
UNITS = {"points": "points", FACTOR: "factor, log scale", "": "plain number"}
BAND = "#d5deea"
MAX_LABEL = 62


def forest_figure(claims: Sequence[ClaimRecord]) -> Figure:
    """Draw a row per part of each claim: differences in points on one axis, factors on a logarithmic one beside it.

    A part of a claim that is not testable here is grey, with the names of the gates that fail.
    """
    rows = [(claim, part) for claim in claims for part in claim.parts]
    units = [unit for unit in UNITS if any(part.estimate.unit == unit for _, part in rows)]
    with styled():
        figure = new_figure(5.4 + 2.7 * len(units), 2.0 + 0.23 * len(rows))
        panels = figure.subplots(1, len(units), squeeze=False, sharey=True)[0]
        for axes, unit in zip(panels, units, strict=True):
            set_axis(axes, [part for _, part in rows if part.estimate.unit == unit])
            for row, (claim, part) in enumerate(rows):
                if part.estimate.unit == unit:
                    draw_part(axes, row, part, LOOKS[claim.verdict_of(part)])
            for row in range(1, len(rows)):
                if rows[row][0] is not rows[row - 1][0]:
                    axes.axhline(row - 0.5, color="#cccccc", linewidth=0.6)
        label_rows(panels[0], [_label(claim, part) for claim, part in rows])
        side = panels[-1].get_yaxis_transform()
        for row, (claim, part) in enumerate(rows):
            verdict = claim.verdict_of(part)
            colour = "#7a7a7a" if verdict == NOT_TESTABLE else "black"
            panels[0].get_yticklabels()[row].set_color(colour)
            beside = {"transform": side, "va": "center", "fontsize": 8, "color": colour}
            panels[-1].text(1.03, row, f"{SIGNS[verdict]} {_found(claim, part, verdict)}", **beside)
        shown = {claim.verdict_of(part): None for claim, part in rows}
        add_legend(figure, [part for _, part in rows], [verdict for verdict in SIGNS if verdict in shown], "upper")
    return figure


def draw_part(axes: Axes, row: int, part: Part, look: Mapping[str, Any]) -> None:
    """Draw an estimate with its interval, the claimed range or the smallest effect behind it, and the paper's value.

    An interval that leaves the axis ends in an arrow.
    """
    left, right = axes.get_xlim()
    estimate = part.estimate
    if part.kind == "range":
        low, high = max(left, part.low), min(right, part.high)
        axes.fill_betweenx([row - 0.38, row + 0.38], low, high, color=BAND, linewidth=0, zorder=0.5)
    elif part.smallest is not None:
        axes.plot([part.smallest] * 2, [row - 0.38, row + 0.38], ":", color="black", linewidth=1.3)
    if estimate.decided:
        low, high = np.clip([estimate.low, estimate.high], left, right)
        axes.plot([low, high], [row, row], "-", color=look["color"], linewidth=1.6)
        for end, beyond, arrow in ((left, estimate.low < left, "<"), (right, estimate.high > right, ">")):
            if beyond:
                axes.plot(end, row, arrow, color=look["color"], markersize=6, clip_on=False)
    if left <= estimate.value <= right:
        axes.plot(estimate.value, row, **look, linestyle="none", markersize=5.5)
    if part.paper is not None:
        axes.plot(part.paper, row, "D", color="black", markerfacecolor="none", markersize=6.5, markeredgewidth=1.0)


def set_axis(axes: Axes, parts: Sequence[Part]) -> None:
    """Choose an axis on which the paper's values and most intervals fit: one wild interval must not hide the rest."""
    position, natural, unit = parts[0].estimate.position, parts[0].estimate.natural, parts[0].estimate.unit
    wanted = [value for part in parts for value in (part.null, part.paper, part.smallest, part.estimate.value)]
    wanted += [end for part in parts if part.kind == "range" for end in (part.low, part.high)]
    inner = [position(value) for value in wanted if value is not None and math.isfinite(value)]
    outer = [position(end) for part in parts if part.interval for end in part.interval]
    inner, outer = ([value for value in values if math.isfinite(value)] for values in (inner, outer))
    most = 3 * float(np.quantile(np.abs([*inner, *outer]), 0.8)) or 1.0
    fitting = [min(max(value, -most), most) for value in [*inner, *outer]]
    papers = [position(part.paper) for part in parts if part.paper is not None and math.isfinite(position(part.paper))]
    low, high = min([*fitting, *papers]), max([*fitting, *papers])
    space = 0.08 * (high - low) or 1.0
    if unit == FACTOR:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(2, numticks=7))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(natural(low - space), natural(high + space))
    axes.set_xlabel(UNITS.get(unit, unit))
    axes.tick_params(axis="y", length=0)
    axes.axvline(parts[0].null, color="black", linewidth=0.9)


def _label(claim: ClaimRecord, part: Part) -> str:
    statement = f"{part.statement} (context)" if part.contextual else part.statement
    return f"{textwrap.shorten(statement, MAX_LABEL, placeholder='…')}  {claim.claim.id}"


def _found(claim: ClaimRecord, part: Part, verdict: Verdict) -> str:
    if verdict == NOT_TESTABLE:
        return ", ".join(gate.name for gate in claim.failed) or "not measured"
    estimate, sign = part.estimate, "+" if part.estimate.unit == "points" else ""
    ends = f" [{estimate.low:{sign}.2g}, {estimate.high:{sign}.2g}]" if estimate.decided else ""
    return f"{estimate.value:{sign}.2g}{ends}"


def add_legend(
    figure: Figure,
    parts: Sequence[Part],
    verdicts: Sequence[Verdict] = (),
    side: str = "lower",
) -> None:
    """Explain the marks of `draw_part`, by verdict or, where none is given, with those of seeds."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], **LOOKS[verdict], label=f"{SIGNS[verdict]} {verdict}", markersize=5.5) for verdict in verdicts
    ]
    if not verdicts:
        handles += [Line2D([], [], color=COLOURS[0], marker="o", markerfacecolor="white", label="mean and interval")]
        handles += [Line2D([], [], color="#666666", marker="|", linestyle="none", label="one seed")]
    if any(part.paper is not None for part in parts):
        diamond = {"color": "black", "marker": "D", "markerfacecolor": "none", "linestyle": "none"}
        handles.append(Line2D([], [], **diamond, label="the paper"))
    if any(part.smallest is not None for part in parts):
        handles.append(Line2D([], [], color="black", linestyle=":", label="smallest effect that counts"))
    if any(part.kind == "range" for part in parts):
        handles.append(Patch(color=BAND, label="claimed range or margin"))
    figure.legend(handles=handles, loc=f"outside {side} center", ncols=4)
