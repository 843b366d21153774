"""Figures of curvature: the sharpness of checkpoints, their spectra and their layers."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError
from scala_lab.report.figures.style import (
    FILLS,
    MARKERS,
    bar_style,
    label_rows,
    line_style,
    new_figure,
    require_columns,
    round_numbers,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scala_lab.curvature.spectrum import DensityResult


def sharpness_bars(frame: pd.DataFrame, unit: str = "nats") -> Figure:
    """Draw one bar per checkpoint: the mean of its top eigenvalues, a whisker of their standard deviation.

    `frame` has one row per checkpoint and set of samples: checkpoint, eigenvalue, optionally converged. `unit` is the
    loss's.
    """
    require_columns(frame, "checkpoint", "eigenvalue")
    groups = [(name, frame[frame["checkpoint"] == name]) for name in dict.fromkeys(frame["checkpoint"])]
    repeated = any(len(rows) > 1 for _, rows in groups)
    with styled():
        figure = new_figure(6.4, 1.5 + 0.55 * len(groups))
        axes = figure.subplots()
        for row, (_, rows) in enumerate(groups):
            values = rows["eigenvalue"].to_numpy(float)
            mean, std = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
            converged = all(_converged(rows))
            _bar(axes, row, mean, 0.62, row, converged)
            if std > 0:
                axes.errorbar(mean, row, xerr=std, color="black", capsize=4, linewidth=1.2)
            _annotate_bar(axes, max(mean + std, 0.0), row, _with_deviation(mean, std), converged)
        label_rows(axes, ["\n".join(textwrap.wrap(str(name), 28)) or str(name) for name, _ in groups])
        axes.set_xlabel(
            f"top eigenvalue ({unit} per squared unit of weight)"
            + ("\nmean and standard deviation over disjoint sets of samples" if repeated else "")
        )
        _fit_annotations(axes, frame["eigenvalue"].to_numpy(float))
        axes.set_title("Sharpness: top eigenvalue of the Hessian")
    return figure


def sharpness_over_loss(frame: pd.DataFrame, unit: str = "nats") -> Figure:
    """Draw top eigenvalues over the training loss, both on log scales: a mark per model and state, filled at the end.

    `frame` has one row per model and state: label, seed, state (`end` or another), loss and value. A thin line joins
    the states of one model. `unit` is the loss's.
    """
    require_columns(frame, "label", "seed", "state", "loss", "value")
    with styled():
        figure = new_figure(6.4, 4.6)
        axes = figure.subplots()
        for index, label in enumerate(dict.fromkeys(frame["label"])):
            rows = frame[(frame["label"] == label) & (frame["loss"] > 0) & (frame["value"] > 0)]
            style = line_style(index, linestyle="none", markersize=7)
            style |= {"marker": "X"} if index >= len(MARKERS) else {}  # the marks of six labels are distinct
            for state, points in rows.groupby("state", sort=False):
                fill = style["color"] if state == "end" else "white"
                name = str(label) if state == "end" else f"{label}, {state}"
                axes.plot(points["loss"], points["value"], label=name, **{**style, "markerfacecolor": fill})
            for _, path in rows.groupby("seed"):
                axes.plot(path["loss"], path["value"], color=style["color"], linewidth=0.7)
        axes.set(xscale="log", yscale="log", xlabel=f"training loss ({unit})")
        axes.set(ylabel=f"top eigenvalue ({unit} per squared unit of weight)", title="Sharpness over training loss")
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = round_numbers(*ends, (1, 2, 5))
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ticks([], minor=True)
        axes.grid(axis="y")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def accuracy_over_sharpness(frame: pd.DataFrame, panels: Mapping[str, str]) -> Figure:
    """Draw accuracy over each of several measures of sharpness: a mark per run, a shape, fill and colour per method.

    `frame` has one row per run: method, score, and a column per measure. `panels` has the title of each measure's panel
    by its column; an axis is logarithmic where the measure spans more than a decade.
    """
    require_columns(frame, "method", "score", *panels)
    rows = math.ceil(len(panels) / 2)
    with styled():
        figure = new_figure(6.8, 1.6 + 2.5 * rows)
        grid = figure.subplots(rows, 2, squeeze=False, sharey=True)
        for axes, (measure, title) in zip(grid.flat, panels.items(), strict=False):
            for index, method in enumerate(dict.fromkeys(frame["method"])):
                runs = frame[frame["method"] == method]
                style = line_style(index, linestyle="none", markersize=6)
                if index < len(MARKERS):  # full shapes, then empty ones: twelve methods differ without colour
                    style["markerfacecolor"] = style["color"]
                axes.plot(runs[measure], runs["score"], label=str(method), **style)
            low, high = frame[measure].min(), frame[measure].max()
            if low > 0 and high > 10 * low:
                ticks = round_numbers(low, high, (1, 3))
                axes.set_xscale("log")
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
                axes.set_xticks([], minor=True)
            axes.set_title(title, fontsize=10)
            axes.grid(axis="y")
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy (%)")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def layer_bars(frame: pd.DataFrame, unit: str = "nats") -> Figure:
    """Draw bars of alpha_i per layer, grouped by layer for several checkpoints; log scale where they span decades.

    `frame` has one row per layer: layer, eigenvalue, optionally checkpoint and converged. kappa_alpha of each
    checkpoint is in the legend, of a single one below the title. `unit` is the loss's.
    """
    require_columns(frame, "layer", "eigenvalue")
    if "checkpoint" not in frame:
        frame = frame.assign(checkpoint="")
    frame = frame.assign(layer=[_short_layer(layer) for layer in frame["layer"]])
    checkpoints = list(dict.fromkeys(frame["checkpoint"]))
    layers = sorted(dict.fromkeys(frame["layer"]), key=lambda name: name == "head")  # after those of the deepest model
    values = frame["eigenvalue"].to_numpy(float)
    height = 0.78 / len(checkpoints)
    with styled():
        from matplotlib.patches import Patch

        figure = new_figure(6.4, 1.6 + len(layers) * (0.25 + 0.2 * len(checkpoints)) + 0.2 * (len(checkpoints) > 1))
        axes = figure.subplots()
        logarithmic = values.min() > 0 and values.max() > 30 * values.min()
        if logarithmic:
            axes.set_xscale("log")
            axes.set_xlim(values.min() / 3, values.max() * (values.max() / values.min()) ** 0.35)
        legend = []
        for index, checkpoint in enumerate(checkpoints):
            rows = frame[frame["checkpoint"] == checkpoint]
            for layer, value, converged in zip(rows["layer"], rows["eigenvalue"], _converged(rows), strict=True):
                y = layers.index(layer) + (index - (len(checkpoints) - 1) / 2) * height
                _bar(axes, y, float(value), 0.92 * height, index, converged)
                _annotate_bar(axes, max(float(value), 0.0), y, f"{value:.3g}", converged)
            sizes = rows["eigenvalue"].abs()
            kappa = f"κ = {sizes.max() / sizes.min():.3g}" if sizes.min() > 0 else "κ infinite"
            fill, label = bar_style(index), f"{checkpoint} ({kappa})" if checkpoint else kappa
            legend.append(Patch(facecolor=fill["color"], edgecolor="black", hatch=fill["hatch"], label=label))
        label_rows(axes, layers)
        title = "Top eigenvalue of each layer's block of the Hessian"
        axes.set_xlabel(f"top eigenvalue ({unit} per squared unit of weight)" + (", log scale" if logarithmic else ""))
        if len(checkpoints) > 1:
            axes.set_title(title)
            meaning = "κ: the sharpest layer over the least sharp"
            figure.legend(handles=legend, title=meaning, loc="outside lower center", ncols=min(len(legend), 3))
        else:
            axes.set_title(f"{title}\n{legend[0].get_label()}, the sharpest over the least sharp")
        if not logarithmic:
            _fit_annotations(axes, values)
    return figure


def density_plot(result: DensityResult, title: str = "Spectral density of the Hessian", unit: str = "nats") -> Figure:
    """Draw the log density of the eigenvalues over a rug of the quadrature's nodes.

    A dashed line marks the height of a single eigenvalue: what lies below it is noise of the estimate.
    """
    density, size = result.density, result.touched_size
    single = 1 / (size * result.width * np.sqrt(2 * np.pi))
    with styled():
        figure = new_figure(6.8, 4.0)
        axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[12, 1])
        floor = min(single, float(density.max())) / 10
        axes.fill_between(result.grid, floor, np.maximum(density, floor), color=FILLS[4], linewidth=0)
        axes.plot(result.grid, np.maximum(density, floor), **line_style(0, marker=""))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
        _mark_single_eigenvalue(axes, single, bbox=box)
        _label_density(axes, rug, (floor, float(density.max()) * 4), unit)
        share = f"{size:,} dimensions" + (f" of {result.full_size:,}" if result.untouched_share else "")
        axes.set_title(f"{textwrap.fill(title, 70)}\n{share}, kernel width {result.width:.2g}")
        rug.vlines(result.nodes, 0, 1, color="black", linewidth=0.7, alpha=0.6)
        rug.set(ylim=(0, 1), yticks=[])
        rug.spines["left"].set_visible(False)
        rug.set_ylabel("nodes", rotation=0, ha="right", va="center", fontsize=8)
    return figure


def density_lines(frames: Mapping[str, pd.DataFrame], *, single: float) -> Figure:
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
    with styled():
        figure = new_figure(6.8, 4.4)
        axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[12, len(frames)])
        for index, (name, density) in enumerate(densities.items()):
            style = line_style(index, marker="")
            axes.plot(grid, np.where(density > floor, density, np.nan), label=name, **style)
            rug.vlines(frames[name]["node"], index + 0.1, index + 0.9, color=style["color"], linewidth=0.8)
        _mark_single_eigenvalue(axes, height)
        _label_density(axes, rug, (floor, top * 4), "nats")
        axes.set_title(f"Spectral density of the Hessian\nkernel width {width:.2g}")
        rug.set_ylim(len(frames), 0)
        rug.set_yticks(np.arange(len(frames)) + 0.5, list(frames), fontsize=8)
        rug.tick_params(axis="y", length=0)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _converged(rows: pd.DataFrame) -> list[bool]:
    return [bool(value) for value in rows["converged"]] if "converged" in rows else [True] * len(rows)


def _bar(axes: Axes, y: float, value: float, height: float, index: int, converged: bool) -> None:
    """Draw a bar; an empty dashed one where the solver did not converge."""
    style = bar_style(index) if converged else bar_style(index, color="white", linestyle="--")
    axes.barh(y, value, height, **style)


def _annotate_bar(axes: Axes, value: float, y: float, text: str, converged: bool) -> None:
    text = text if converged else f"{text}, not converged"
    place: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (value, y), fontsize=9, annotation_clip=False, **place)


def _mark_single_eigenvalue(axes: Axes, height: float, **style: Any) -> None:
    axes.axhline(height, color="black", linestyle="--", linewidth=0.9)
    style |= {"xycoords": ("axes fraction", "data"), "xytext": (-2, 3), "textcoords": "offset points", "ha": "right"}
    axes.annotate("height of a single eigenvalue", (1, height), fontsize=8, **style)


def _label_density(axes: Axes, rug: Axes, limits: tuple[float, float], unit: str) -> None:
    axes.set(yscale="log", ylim=limits, ylabel="density (share per unit of eigenvalue)")
    rug.set_xlabel(f"eigenvalue ({unit} per squared unit of weight)")


def _with_deviation(mean: float, deviation: float) -> str:
    """Write a mean with as many decimals as two digits of its deviation have."""
    if not deviation > 0:
        return f"{mean:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"


def _fit_annotations(axes: Axes, values: np.ndarray) -> None:
    """Start at 0 where nothing is negative, and widen the axis for the longest number beside a bar."""
    left, right = axes.get_xlim()
    longest = max(len(note.get_text()) for note in axes.texts)
    axes.set_xlim(min(left, 0.0) if values.min() < 0 else 0.0, right + 0.025 * longest * (right - left))
    if values.min() < 0:
        axes.axvline(0, color="black", linewidth=0.8)


def _short_layer(name: str) -> str:
    """Shorten `bert.encoder.layer.3` to `layer 3`; leave other names."""
    number = re.search(r"(\d+)$", name)
    return f"layer {number.group(1)}" if number else name
