"""Figures of curvature: the sharpness of checkpoints, their spectra and their layers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError
from scala_lab.report.figures import style
from scala_lab.report.figures.style import Axes, DataFrame, Figure

if TYPE_CHECKING:
    from scala_lab.curvature.spectrum import DensityResult


@style.styled()
def sharpness_bars(frame: DataFrame, unit: str = "nats") -> Figure:
    """Draw one bar per checkpoint: the mean of its top eigenvalues, a whisker of their standard deviation.

    `frame` has one row per checkpoint and set of samples: checkpoint, eigenvalue, converged. `unit` is the loss's.
    """
    style.require_columns(frame, "checkpoint", "eigenvalue", "converged")
    groups = list(frame.groupby("checkpoint", sort=False))
    figure = style.new_figure(6.4, 1.5 + 0.55 * len(groups))
    axes = figure.subplots()
    for row, (_, rows) in enumerate(groups):
        values = rows["eigenvalue"].to_numpy(float)
        mean, std = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
        decimals = max(0, 1 - math.floor(math.log10(std or 1.0)))  # two digits of the deviation
        text = f"{mean:.{decimals}f} ± {std:.{decimals}f}" if std else f"{mean:.3g}"
        _bar(axes, row, mean, 0.62, row, text, mean + std, rows["converged"].all())
        if std:
            axes.errorbar(mean, row, xerr=std, color="black", capsize=4, linewidth=1.2)
    style.label_rows(axes, [textwrap.fill(str(name), 28) for name, _ in groups])
    over = "\nmean and standard deviation over disjoint sets of samples" if len(frame) > len(groups) else ""
    axes.set_xlabel(f"top eigenvalue ({unit} per squared unit of weight){over}")
    _fit_annotations(axes, frame["eigenvalue"].to_numpy(float))
    axes.set_title("Sharpness: top eigenvalue of the Hessian")
    return figure


@style.styled()
def sharpness_over_loss(frame: DataFrame) -> Figure:
    """Draw top eigenvalues over the training loss, both on log scales: a mark per model and state, filled at the end.

    `frame` has one row per model and state: label, seed, state (`end` or another), loss and value. A thin line joins
    the states of one model.
    """
    style.require_columns(frame, "label", "seed", "state", "loss", "value")
    figure = style.new_figure(6.4, 4.6)
    axes = figure.subplots()
    for index, (label, points) in enumerate(frame.groupby("label", sort=False)):
        rows = points[(points["loss"] > 0) & (points["value"] > 0)]
        look = style.line_style(index, linestyle="none", markersize=7)
        look |= {"marker": "X"} if index >= len(style.MARKERS) else {}  # the marks of six labels are distinct
        for state, marks in rows.groupby("state", sort=False):
            fill, name = (look["color"], label) if state == "end" else ("white", f"{label}, {state}")
            axes.plot(marks["loss"], marks["value"], label=str(name), **{**look, "markerfacecolor": fill})
        for _, path in rows.groupby("seed"):
            axes.plot(path["loss"], path["value"], color=look["color"], linewidth=0.7)
    axes.set(xscale="log", yscale="log", xlabel="training loss (nats)", title="Sharpness over training loss")
    axes.set_ylabel("top eigenvalue (nats per squared unit of weight)")
    for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        style.set_ticks(axis, style.round_numbers(*ends, (1, 2, 5)))
    axes.grid(axis="y")
    style.legend_below(figure, 2)
    return figure


@style.styled()
def accuracy_over_sharpness(frame: DataFrame, panels: Mapping[str, str]) -> Figure:
    """Draw accuracy over each of several measures of sharpness: a mark per run, a shape, fill and colour per method.

    `frame` has one row per run: method, score, and a column per measure. `panels` has the title of each measure's panel
    by its column; an axis is logarithmic where the measure spans more than a decade.
    """
    style.require_columns(frame, "method", "score", *panels)
    rows = math.ceil(len(panels) / 2)
    figure = style.new_figure(6.8, 1.6 + 2.5 * rows)
    grid = figure.subplots(rows, 2, squeeze=False, sharey=True)
    for axes, (measure, title) in zip(grid.flat, panels.items(), strict=False):
        for index, (method, runs) in enumerate(frame.groupby("method", sort=False)):
            look = style.line_style(index, linestyle="none", markersize=6)
            if index < len(style.MARKERS):  # full shapes, then empty ones: twelve methods differ without colour
                look["markerfacecolor"] = look["color"]
            axes.plot(runs[measure], runs["score"], label=str(method), **look)
        low, high = frame[measure].min(), frame[measure].max()
        if low > 0 and high > 10 * low:
            axes.set_xscale("log")
            style.set_ticks(axes.xaxis, style.round_numbers(low, high, (1, 3)))
        axes.set_title(title, fontsize=10)
        axes.grid(axis="y")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    style.legend_below(figure, 3)
    return figure


@style.styled()
def layer_bars(frame: DataFrame, unit: str = "nats") -> Figure:
    """Draw bars of alpha_i per layer, grouped by layer for several checkpoints; log scale where they span decades.

    `frame` has one row per checkpoint and layer: checkpoint, layer, eigenvalue, converged. kappa_alpha of each
    checkpoint is in the legend, of a single one below the title. `unit` is the loss's.
    """
    style.require_columns(frame, "checkpoint", "layer", "eigenvalue", "converged")
    frame = frame.assign(layer=frame["layer"].str.replace(r".*?(\d+)$", r"layer \1", regex=True))  # bert.layer.3
    checkpoints = list(dict.fromkeys(frame["checkpoint"]))
    layers = sorted(dict.fromkeys(frame["layer"]), key=lambda name: name == "head")  # after those of the deepest model
    values, height = frame["eigenvalue"].to_numpy(float), 0.78 / len(checkpoints)
    from matplotlib.patches import Patch

    figure = style.new_figure(6.4, 1.6 + len(layers) * (0.25 + 0.2 * len(checkpoints)) + 0.2 * (len(checkpoints) > 1))
    axes = figure.subplots()
    logarithmic = style.spans_decades(values)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(values.min() / 3, values.max() * (values.max() / values.min()) ** 0.35)
    legend = []
    for index, (checkpoint, rows) in enumerate(frame.groupby("checkpoint", sort=False)):
        for layer, value, converged in rows[["layer", "eigenvalue", "converged"]].itertuples(index=False):
            y = layers.index(layer) + (index - (len(checkpoints) - 1) / 2) * height
            _bar(axes, y, value, 0.92 * height, index, f"{value:.3g}", value, converged)
        sizes = rows["eigenvalue"].abs()
        kappa = f"κ = {sizes.max() / sizes.min():.3g}" if sizes.min() > 0 else "κ infinite"
        label = f"{checkpoint} ({kappa})"
        legend.append(Patch(**style.bar_style(index, linewidth=1.0), label=label))
    style.label_rows(axes, layers)
    below = "" if len(checkpoints) > 1 else f"\n{label}, the sharpest over the least sharp"
    axes.set_title(f"Top eigenvalue of each layer's block of the Hessian{below}")
    axes.set_xlabel(f"top eigenvalue ({unit} per squared unit of weight)" + (", log scale" if logarithmic else ""))
    if len(checkpoints) > 1:
        meaning = "κ: the sharpest layer over the least sharp"
        figure.legend(handles=legend, title=meaning, loc="outside lower center", ncols=3)
    if not logarithmic:
        _fit_annotations(axes, values)
    return figure


@style.styled()
def density_plot(result: DensityResult, title: str = "Spectral density of the Hessian", unit: str = "nats") -> Figure:
    """Draw the log density of the eigenvalues over a rug of the quadrature's nodes.

    A dashed line marks the height of a single eigenvalue: what lies below it is noise of the estimate.
    """
    top, size = float(result.density.max()), result.touched_size
    single = 1 / (size * result.width * np.sqrt(2 * np.pi))
    figure = style.new_figure(6.8, 4.0)
    axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[12, 1])
    floor = min(single, top) / 10
    density = np.maximum(result.density, floor)
    axes.fill_between(result.grid, floor, density, color=style.FILLS[4], linewidth=0)
    axes.plot(result.grid, density, **style.line_style(0, marker=""))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
    _label_density(axes, rug, single, top, unit, bbox=box)
    share = f"{size:,} dimensions" + (f" of {result.full_size:,}" if result.untouched_share else "")
    axes.set_title(f"{textwrap.fill(title, 70)}\n{share}, kernel width {result.width:.2g}")
    rug.vlines(result.nodes, 0, 1, color="black", linewidth=0.7, alpha=0.6)
    rug.set(ylim=(0, 1), yticks=[])
    rug.spines["left"].set_visible(False)
    rug.set_ylabel("nodes", rotation=0, ha="right", va="center", fontsize=8)
    return figure


@style.styled()
def density_lines(frames: Mapping[str, DataFrame], *, single: float) -> Figure:
    """Draw log densities of several models' eigenvalues on one axis, smoothed by one kernel, over rugs of their nodes.

    `frames` has the quadrature of each model by its name: columns node and weight. `single` is the share of one
    eigenvalue, 1 / dimensions: a dashed line marks the height of a single one.
    """
    from scala_lab.curvature.spectrum import MARGIN, gaussian_mixture

    if not frames:
        raise UserError("the figure needs at least one model's spectrum")
    nodes = np.concatenate([frame["node"].to_numpy(float) for frame in frames.values()])
    width = (float(np.ptp(nodes)) or 1.0) / 100
    grid = np.linspace(nodes.min() - MARGIN * width, nodes.max() + MARGIN * width, 1001)
    densities = {
        name: gaussian_mixture(grid, frame["node"].to_numpy(float), frame["weight"].to_numpy(float), width)
        for name, frame in frames.items()
    }
    top = max(float(density.max()) for density in densities.values())
    height = single / (width * np.sqrt(2 * np.pi))
    floor = min(height, top) / 10
    figure = style.new_figure(6.8, 4.4)
    axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[12, len(frames)])
    for index, (name, density) in enumerate(densities.items()):
        look = style.line_style(index, marker="")
        axes.plot(grid, np.where(density > floor, density, np.nan), label=name, **look)
        rug.vlines(frames[name]["node"], index + 0.1, index + 0.9, color=look["color"], linewidth=0.8)
    _label_density(axes, rug, height, top, "nats")
    axes.set_title(f"Spectral density of the Hessian\nkernel width {width:.2g}")
    rug.set_ylim(len(frames), 0)
    rug.set_yticks(np.arange(len(frames)) + 0.5, list(frames), fontsize=8)
    rug.tick_params(axis="y", length=0)
    style.legend_below(figure, 3)
    return figure


def _bar(axes: Axes, y: float, value: float, height: float, index: int, text: str, end: float, sure: bool) -> None:
    """Draw a bar with a text beside its end, or 0; an empty dashed one where the solver did not converge."""
    axes.barh(y, value, height, **style.bar_style(index, **({} if sure else {"facecolor": "white", "linestyle": "--"})))
    text = text if sure else f"{text}, not converged"
    place: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (max(end, 0.0), y), fontsize=9, annotation_clip=False, **place)


def _label_density(axes: Axes, rug: Axes, single: float, top: float, unit: str, **look: Any) -> None:
    """Mark the height of a single eigenvalue, which decides where the axis starts, and label the axes."""
    axes.axhline(single, color="black", linestyle="--", linewidth=0.9)
    look |= {"xycoords": ("axes fraction", "data"), "xytext": (-2, 3), "textcoords": "offset points", "ha": "right"}
    axes.annotate("height of a single eigenvalue", (1, single), fontsize=8, **look)
    axes.set(yscale="log", ylim=(min(single, top) / 10, top * 4), ylabel="density (share per unit of eigenvalue)")
    rug.set_xlabel(f"eigenvalue ({unit} per squared unit of weight)")


def _fit_annotations(axes: Axes, values: np.ndarray) -> None:
    """Start at 0 where nothing is negative, and widen the axis for the longest number beside a bar."""
    left, right = axes.get_xlim()
    longest = max(len(note.get_text()) for note in axes.texts)
    axes.set_xlim(min(left, 0.0) if values.min() < 0 else 0.0, right + 0.025 * longest * (right - left))
    if values.min() < 0:
        axes.axvline(0, color="black", linewidth=0.8)
