"""Figures of time: the phases of a step, and time over the number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.clock import PHASES
from scala_lab.report.figures.style import (
    FILLS,
    HATCHES,
    bar_style,
    label_rows,
    line_style,
    line_with_band,
    new_figure,
    require_columns,
    round_numbers,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled()
def phase_bars(frame: pd.DataFrame) -> Figure:
    """Draw one stacked bar per method, a part for each phase, the whole step written beside it.

    `frame` has one row per method and phase: method, phase, value (in forward passes).
    """
    require_columns(frame, "method", "phase", "value")
    methods = list(dict.fromkeys(frame["method"]))
    times = frame.pivot(index="method", columns="phase", values="value").loc[methods].fillna(0.0)
    fills, hatches = [*FILLS, "#ffffff", "#9db3d1"], [*HATCHES, "ooo", "--"]
    figure = new_figure(7.2, 1.9 + 0.55 * len(methods))
    axes = figure.subplots()
    left = np.zeros(len(methods))
    for phase, fill, hatch in zip(PHASES, fills, hatches, strict=True):
        if phase in times:
            style = bar_style(0, color=fill, hatch=hatch)
            axes.barh(np.arange(len(methods)), times[phase], 0.62, left=left, label=phase, **style)
            left += times[phase].to_numpy()
    for row, whole in enumerate(left):
        axes.annotate(f"{whole:.2f}", (whole, row), xytext=(5, 0), textcoords="offset points", va="center")
    label_rows(axes, methods)
    axes.set(xlim=(0, 1.1 * left.max()), xlabel="time of a step (forward passes)")
    axes.set_title("Where the time of a step goes")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@styled()
def exchange_bars(frame: pd.DataFrame) -> Figure:
    """Draw one bar per setup, in percent of the step: computing, and communication not hidden behind it.

    `frame` has one row per setup: label, computing, exposed, both in the same unit.
    """
    require_columns(frame, "label", "computing", "exposed")
    whole = (frame["computing"] + frame["exposed"]).to_numpy()
    figure = new_figure(7.2, 1.7 + 0.42 * len(frame))
    axes = figure.subplots()
    left = np.zeros(len(frame))
    for index, (name, label) in enumerate((("computing", "computing"), ("exposed", "exposed communication"))):
        widths = 100 * frame[name].to_numpy() / whole
        axes.barh(np.arange(len(frame)), widths, 0.62, left=left, label=label, **bar_style(index))
        left += widths
    for row, share in enumerate(100 * frame["exposed"].to_numpy() / whole):
        axes.annotate(f"{share:.0f}%", (100, row), xytext=(5, 0), textcoords="offset points", va="center")
    label_rows(axes, list(frame["label"]))
    axes.set(xlim=(0, 112), xticks=range(0, 101, 20), xlabel="share of a step (%)")
    axes.set_title("What communication adds to a step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@styled()
def worker_lines(frame: pd.DataFrame, title: str, y_label: str = "seconds per epoch") -> Figure:
    """Draw time over the number of workers on logarithmic scales, with a thin line of perfect scaling for each.

    `frame` has one row per label and number of workers: label, workers, value, and optionally low, high, `paper` (the
    paper's value, nan for none, drawn as an open diamond) and `measured`. Measured values are points with whiskers;
    what is not measured is projected: the line goes on dashed, in its error band.
    """
    require_columns(frame, "label", "workers", "value")
    frame = frame if "measured" in frame else frame.assign(measured=True)
    from matplotlib.lines import Line2D

    figure = new_figure(6.4, 4.6)
    axes = figure.subplots()
    for index, (label, rows) in enumerate(frame.groupby("label", sort=False)):
        line, style = rows.sort_values("workers"), line_style(index)
        _measured_and_projected(axes, line, str(label), style)
        if "paper" in line:
            look = {"color": style["color"], "marker": "D", "markersize": 9, "markerfacecolor": "none"}
            axes.plot(line["workers"], line["paper"], linestyle="none", **look)
        perfect = line["value"].iloc[0] * line["workers"].iloc[0] / line["workers"]
        axes.plot(line["workers"], perfect, color=style["color"], linewidth=0.7, linestyle=":")
    counts = sorted(set(frame["workers"]))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.minorticks_off()
    ticks = round_numbers(*axes.get_ylim(), (1, 2, 5))
    ticks = ticks if len(ticks) >= 3 else round_numbers(*axes.get_ylim(), range(1, 10))
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(title=title, xlabel="workers", ylabel=y_label)
    axes.grid(axis="y")
    handles, names = axes.get_legend_handles_labels()
    looks: dict[str, dict[str, Any]] = {"perfect scaling": {"linewidth": 0.7, "linestyle": ":"}}
    if not frame["measured"].all():
        looks |= {"measured": {"marker": "o", "linestyle": "none"}, "projected": {"linestyle": "--"}}
    if "paper" in frame and frame["paper"].notna().any():
        looks["the paper"] = {"marker": "D", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
    handles += [Line2D([], [], color="black", **look) for look in looks.values()]
    figure.legend(handles, [*names, *looks], loc="outside lower center", ncols=2)
    return figure


def _measured_and_projected(axes: Axes, line: pd.DataFrame, label: str, style: dict[str, Any]) -> None:
    """Draw measured values as points, and the projection dashed from the last of them."""
    measured, projected = line[line["measured"]], line[~line["measured"]]
    if projected.empty:
        line_with_band(axes, line["workers"], line, label, style)
        return
    axes.plot(measured["workers"], measured["value"], label=label, **{**style, "linestyle": "-"})
    if {"low", "high"} <= set(line):
        whiskers = np.abs(measured[["low", "high"]].to_numpy(float).T - measured["value"].to_numpy(float))
        axes.errorbar(measured["workers"], measured["value"], whiskers, fmt="none", color=style["color"], capsize=3)
    joined = line[~line["measured"] | (line["workers"] == measured["workers"].max())]
    line_with_band(axes, joined["workers"], joined, "", {**style, "linestyle": "--", "marker": ""})
