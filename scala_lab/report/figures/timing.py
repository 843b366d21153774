"""Figures of time: what a step is spent on, and how time falls with the number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.clock import PHASES
from scala_lab.errors import UserError
from scala_lab.report.figures.style import COLOURS, DASHES, FILLS, HATCHES, MARKERS, new_figure, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def phase_bars(
    frame: pd.DataFrame, title: str = "Where the time of a step goes", unit: str = "forward passes"
) -> Figure:
    """One stacked bar per method, a part for each phase, whole steps written beside it.

    Args:
        frame: One row per method and phase: method, phase, value. Methods stand in the order of their first row.
        title: Over the figure.
        unit: Of the values.
    """
    _require(frame, "method", "phase", "value")
    methods = list(dict.fromkeys(frame["method"]))
    phases = [phase for phase in PHASES if phase in set(frame["phase"])]
    fills = [*FILLS, "#ffffff", "#9db3d1"]
    hatches = [*HATCHES, "ooo", "--"]
    with styled():
        figure = new_figure(7.2, 1.9 + 0.55 * len(methods))
        axes = figure.subplots()
        left = np.zeros(len(methods))
        for phase in phases:
            number = PHASES.index(phase)
            rows = frame[frame["phase"] == phase].set_index("method")["value"]
            widths = np.array([float(rows.get(method, 0.0)) for method in methods])
            axes.barh(
                np.arange(len(methods)),
                widths,
                0.62,
                left=left,
                color=fills[number % len(fills)],
                hatch=hatches[number % len(hatches)],
                edgecolor="black",
                linewidth=0.8,
                label=phase,
            )
            left += widths
        for place, whole in enumerate(left):
            axes.annotate(f"{whole:.2f}", (whole, place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.1 * left.max())
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.set_xlabel(f"time of a step ({unit})")
        axes.set_title(title)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def exchange_bars(frame: pd.DataFrame, title: str = "What communication adds to a step") -> Figure:
    """One bar per place, its parts in percent of the step: computing, and the communication that nothing hides.

    Args:
        frame: One row per place: label, computing, exposed; both in the same unit.
        title: Over the figure.
    """
    _require(frame, "label", "computing", "exposed")
    whole = (frame["computing"] + frame["exposed"]).to_numpy()
    with styled():
        figure = new_figure(7.2, 1.7 + 0.42 * len(frame))
        axes = figure.subplots()
        left = np.zeros(len(frame))
        for number, (name, label) in enumerate((("computing", "computing"), ("exposed", "exposed communication"))):
            widths = 100 * frame[name].to_numpy() / whole
            axes.barh(
                np.arange(len(frame)),
                widths,
                0.62,
                left=left,
                color=FILLS[number],
                hatch=HATCHES[number],
                edgecolor="black",
                linewidth=0.8,
                label=label,
            )
            left += widths
        for place, share in enumerate(100 * frame["exposed"].to_numpy() / whole):
            axes.annotate(f"{share:.0f}%", (100, place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(frame)), list(frame["label"]))
        axes.set_ylim(len(frame) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 112)
        axes.set_xticks(range(0, 101, 20))
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.set_xlabel("share of a step (%)")
        axes.set_title(title)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def worker_lines(
    frame: pd.DataFrame, title: str, y_label: str = "seconds per epoch", x_label: str = "workers"
) -> Figure:
    """Time over the number of workers on logarithmic scales, beside a thin line of perfect scaling for each.

    Args:
        frame: One row per label and number of workers: label, workers, value, and optionally low, high.
        title: Over the figure.
        y_label: Of the values.
        x_label: Of the numbers of workers.
    """
    _require(frame, "label", "workers", "value")
    with styled():
        from matplotlib.lines import Line2D

        figure = new_figure(6.4, 4.6)
        axes = figure.subplots()
        for number, label in enumerate(dict.fromkeys(frame["label"])):
            line = frame[frame["label"] == label].sort_values("workers")
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(
                line["workers"],
                line["value"],
                label=label,
                color=colour,
                linestyle=DASHES[number % len(DASHES)],
                marker=MARKERS[number % len(MARKERS)],
                markerfacecolor="white",
            )
            if {"low", "high"} <= set(line):
                axes.fill_between(line["workers"], line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
            perfect = line["value"].iloc[0] * line["workers"].iloc[0] / line["workers"]
            axes.plot(line["workers"], perfect, color=colour, linewidth=0.7, linestyle=":")
        counts = sorted(set(frame["workers"]))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, [f"{count:g}" for count in counts])
        axes.minorticks_off()
        _plain_ticks(axes)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(axis="y")
        axes.set_title(title)
        handles, names = axes.get_legend_handles_labels()
        handles.append(Line2D([], [], color="black", linewidth=0.7, linestyle=":"))
        figure.legend(handles, [*names, "perfect scaling"], loc="outside lower center", ncols=2)
    return figure


def _plain_ticks(axes: Axes) -> None:
    """Ticks at 1, 2, 5 of each decade, or at all digits where those are few, as numbers and not as powers."""
    low, high = axes.get_ylim()
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in ((1, 2, 5), range(1, 10)):
        ticks = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(ticks) >= 3:
            break
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _require(frame: pd.DataFrame, *columns: str) -> None:
    for column in columns:
        if column not in frame:
            raise UserError(f"the figure's table needs a column {column}: it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise UserError("the figure's table has no rows")
