"""Figures of time: the phases of a step, and time over the number of workers."""

from typing import Any

import numpy as np

from scala_lab.clock import PHASES
from scala_lab.report.figures import style
from scala_lab.report.figures.style import Axes, DataFrame, Figure


@style.styled()
def phase_bars(frame: DataFrame) -> Figure:
    """Draw one stacked bar per method, a part for each phase, the whole step written beside it.

    `frame` has one row per method and phase: method, phase, value (in forward passes).
    """
    style.require_columns(frame, "method", "phase", "value")
    times = frame.pivot(index="method", columns="phase", values="value").fillna(0.0)
    times = times.reindex(index=frame["method"].unique(), columns=PHASES)
    fills, hatches = [*style.FILLS, "#ffffff", "#9db3d1"], [*style.HATCHES, "ooo", "--"]
    styles = [style.bar_style(0, facecolor=fill, hatch=hatch) for fill, hatch in zip(fills, hatches, strict=True)]
    whole = times.sum(axis=1)
    figure = style.new_figure(7.2, 1.9 + 0.55 * len(times))
    axes = figure.subplots()
    _stack(axes, times, styles, [f"{time:.2f}" for time in whole])
    axes.set(xlim=(0, 1.1 * whole.max()), xlabel="time of a step (forward passes)")
    axes.set_title("Where the time of a step goes")
    style.legend_below(figure, 4)
    return figure


@style.styled()
def exchange_bars(frame: DataFrame) -> Figure:
    """Draw one bar per setup, in percent of the step: computing, and communication not hidden behind it.

    `frame` has one row per setup: label, computing, exposed, both in the same unit.
    """
    style.require_columns(frame, "label", "computing", "exposed")
    times = frame.set_index("label")[["computing", "exposed"]].rename(columns={"exposed": "exposed communication"})
    shares = 100 * times.div(times.sum(axis=1), axis=0)
    figure = style.new_figure(7.2, 1.7 + 0.42 * len(frame))
    axes = figure.subplots()
    texts = [f"{share:.0f}%" for share in shares["exposed communication"]]
    _stack(axes, shares, [style.bar_style(0), style.bar_style(1)], texts)
    axes.set(xlim=(0, 112), xticks=range(0, 101, 20))
    axes.set(xlabel="share of a step (%)", title="What communication adds to a step")
    style.legend_below(figure, 2)
    return figure


def _stack(axes: Axes, parts: DataFrame, styles: list[dict[str, Any]], texts: list[str]) -> None:
    """Draw a bar per row of the table, stacked from the columns that have numbers, with a text beside it."""
    left = np.zeros(len(parts))
    for (name, widths), look in zip(parts.items(), styles, strict=True):
        if widths.notna().any():
            bars = axes.barh(np.arange(len(parts)), widths, 0.62, left=left, label=name, **look)
            left += widths.to_numpy()
    axes.bar_label(bars, texts, padding=5)
    style.label_rows(axes, list(parts.index))


PAPER: dict[str, Any] = {"marker": "D", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}


@style.styled()
def worker_lines(frame: DataFrame, title: str, y_label: str = "seconds per epoch") -> Figure:
    """Draw time over the number of workers on logarithmic scales, with a thin line of perfect scaling for each.

    `frame` has one row per label and number of workers: label, workers, value, and optionally low, high, `paper` (the
    paper's value, nan for none, drawn as an open diamond) and `measured`. Measured values are points with whiskers;
    what is not measured is projected: the line goes on dashed, in its error band.
    """
    style.require_columns(frame, "label", "workers", "value")
    frame = frame if "measured" in frame else frame.assign(measured=True)
    figure = style.new_figure(6.4, 4.6)
    axes = figure.subplots()
    for index, (label, rows) in enumerate(frame.groupby("label", sort=False)):
        line, look = rows.sort_values("workers"), style.line_style(index)
        _measured_and_projected(axes, line, str(label), look)
        if "paper" in line:
            axes.plot(line["workers"], line["paper"], color=look["color"], **PAPER)
        perfect = line["value"].iloc[0] * line["workers"].iloc[0] / line["workers"]
        axes.plot(line["workers"], perfect, color=look["color"], linewidth=0.7, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = style.round_numbers(*axes.get_ylim(), (1, 2, 5))
    style.set_ticks(axes.xaxis, sorted(set(frame["workers"])))
    style.set_ticks(axes.yaxis, ticks if len(ticks) >= 3 else style.round_numbers(*axes.get_ylim(), range(1, 10)))
    axes.set(title=title, xlabel="workers", ylabel=y_label)
    axes.grid(axis="y")
    looks: dict[str, dict[str, Any]] = {"perfect scaling": {"linewidth": 0.7, "linestyle": ":"}}
    if not frame["measured"].all():
        looks |= {"measured": {"marker": "o", "linestyle": "none"}, "projected": {"linestyle": "--"}}
    if "paper" in frame and frame["paper"].notna().any():
        looks["the paper"] = PAPER
    style.legend_below(figure, 2, looks)
    return figure


def _measured_and_projected(axes: Axes, line: DataFrame, label: str, look: dict[str, Any]) -> None:
    """Draw measured values as points, and the projection dashed from the last of them."""
    measured, projected = line[line["measured"]], line[~line["measured"]]
    if projected.empty:
        style.line_with_band(axes, line["workers"], line, label, look)
        return
    axes.plot(measured["workers"], measured["value"], label=label, **{**look, "linestyle": "-"})
    if {"low", "high"} <= set(line):
        whiskers = np.abs(measured[["low", "high"]].to_numpy(float).T - measured["value"].to_numpy(float))
        axes.errorbar(measured["workers"], measured["value"], whiskers, fmt="none", color=look["color"], capsize=3)
    joined = line[~line["measured"] | (line["workers"] == measured["workers"].max())]
    style.line_with_band(axes, joined["workers"], joined, "", {**look, "linestyle": "--", "marker": ""})
