"""Figures of curvature: how sharp checkpoints are, their spectrum, and their layers.

Figures that set the spectra of several models beside one another.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.curvature.spectrum import MARGIN, gaussian_mixture
from scala_lab.errors import UserError
from scala_lab.report.figures.style import COLOURS, DASHES, FILLS, HATCHES, new_figure, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scala_lab.curvature.spectrum import DensityResult


def sharpness_bars(
    frame: pd.DataFrame, title: str = "Sharpness: top eigenvalue of the Hessian", unit: str = "nats"
) -> Figure:
    """One bar per checkpoint: the mean of its top eigenvalues, a whisker of their standard deviation.

    Args:
        frame: One row per checkpoint and fixed set of samples: checkpoint, eigenvalue, and optionally converged.
            Checkpoints stand in the order of their first row.
        title: Over the figure.
        unit: Of the loss.
    """
    _require(frame, "checkpoint", "eigenvalue")
    groups = [(name, frame[frame["checkpoint"] == name]) for name in dict.fromkeys(frame["checkpoint"])]
    repeated = any(len(rows) > 1 for _, rows in groups)
    with styled():
        figure = new_figure(6.4, 1.5 + 0.55 * len(groups))
        axes = figure.subplots()
        labels = []
        for place, (name, rows) in enumerate(groups):
            values = rows["eigenvalue"].to_numpy(float)
            sure = bool(rows["converged"].all()) if "converged" in rows else True
            spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            _bar(axes, place, float(values.mean()), 0.62, place, sure)
            if spread > 0:
                axes.errorbar(values.mean(), place, xerr=spread, color="black", capsize=4, linewidth=1.2)
            text = _with_spread(float(values.mean()), spread)
            _beside(axes, max(float(values.mean()) + spread, 0.0), place, text if sure else f"{text}, not converged")
            labels.append(_wrapped(str(name)))
        _name_rows(axes, labels)
        axes.set_xlabel(
            f"top eigenvalue ({unit} per squared unit of weight)"
            + ("\nmean and standard deviation over disjoint sets of samples" if repeated else "")
        )
        _leave_room(axes, frame["eigenvalue"].to_numpy(float))
        axes.set_title(title)
    return figure


def layer_bars(
    frame: pd.DataFrame, title: str = "Top eigenvalue of each layer's block of the Hessian", unit: str = "nats"
) -> Figure:
    """Bars of alpha_i per layer, beside one another for several checkpoints; log scale where they span decades.

    Args:
        frame: One row per layer: layer, eigenvalue, and optionally checkpoint and converged.
        title: Over the figure; each checkpoint's kappa_alpha stands in the legend, or under it for one.
        unit: Of the loss.
    """
    _require(frame, "layer", "eigenvalue")
    if "checkpoint" not in frame:
        frame = frame.assign(checkpoint="")
    frame = frame.assign(layer=[_short_layer(layer) for layer in frame["layer"]])
    checkpoints, layers = list(dict.fromkeys(frame["checkpoint"])), _in_order(frame["layer"])
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
        keys = []
        for number, checkpoint in enumerate(checkpoints):
            rows = frame[frame["checkpoint"] == checkpoint]
            for layer, value, sure in zip(rows["layer"], rows["eigenvalue"], _converged(rows), strict=True):
                place = layers.index(layer) + (number - (len(checkpoints) - 1) / 2) * height
                _bar(axes, place, float(value), 0.92 * height, number, bool(sure))
                _beside(axes, max(float(value), 0.0), place, f"{value:.3g}" + ("" if sure else ", not converged"))
            sizes = rows["eigenvalue"].abs()
            kappa = f"κ = {sizes.max() / sizes.min():.3g}" if sizes.min() > 0 else "κ infinite"
            label = f"{checkpoint} ({kappa})" if checkpoint else kappa
            keys.append(Patch(facecolor=_fill(number), edgecolor="black", hatch=_hatch(number), label=label))
        _name_rows(axes, layers)
        axes.set_xlabel(f"top eigenvalue ({unit} per squared unit of weight)" + (", log scale" if logarithmic else ""))
        if len(checkpoints) > 1:
            axes.set_title(title)
            meaning = "κ: the sharpest layer over the least sharp"
            figure.legend(handles=keys, title=meaning, loc="outside lower center", ncols=min(len(keys), 3))
        else:
            axes.set_title(f"{title}\n{keys[0].get_label()}, the sharpest over the least sharp")
        if not logarithmic:
            _leave_room(axes, values)
    return figure


def density_plot(
    result: DensityResult, title: str = "Spectral density of the Hessian", unit: str = "nats", *, full: bool = False
) -> Figure:
    """Log density of the eigenvalues over a rug of the quadrature's nodes.

    A dashed line stands at the height of a single eigenvalue: what lies below is noise of the estimate.

    Args:
        result: What `spectral_density` found.
        title: Over the figure.
        unit: Of the loss.
        full: Over all parameters instead of the touched ones.
    """
    density = result.full_density if full else result.density
    size = result.full_size if full else result.touched_size
    single = 1 / (size * result.width * np.sqrt(2 * np.pi))
    with styled():
        figure = new_figure(6.8, 4.0)
        axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[12, 1])
        floor = min(single, float(density.max())) / 10
        axes.fill_between(result.grid, floor, np.maximum(density, floor), color=FILLS[4], linewidth=0)
        axes.plot(result.grid, np.maximum(density, floor), color=COLOURS[0])
        axes.axhline(single, color="black", linestyle="--", linewidth=0.9)
        axes.annotate(
            "height of a single eigenvalue",
            (1, single),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )
        axes.set_yscale("log")
        axes.set_ylim(floor, float(density.max()) * 4)
        axes.set_ylabel("density (share per unit of eigenvalue)")
        share = f"{size:,} dimensions" + ("" if full or not result.untouched_share else f" of {result.full_size:,}")
        axes.set_title(f"{textwrap.fill(title, 70)}\n{share}, kernel width {result.width:.2g}")
        rug.vlines(result.nodes, 0, 1, color="black", linewidth=0.7, alpha=0.6)
        rug.set_ylim(0, 1)
        rug.set_yticks([])
        rug.spines["left"].set_visible(False)
        rug.set_ylabel("nodes", rotation=0, ha="right", va="center", fontsize=8)
        rug.set_xlabel(f"eigenvalue ({unit} per squared unit of weight)")
    return figure


def _require(frame: pd.DataFrame, *columns: str) -> None:
    for column in columns:
        if column not in frame:
            raise UserError(f"the figure's table needs a column {column}: it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise UserError("the figure's table has no rows")


def _converged(rows: pd.DataFrame) -> list[bool]:
    return [bool(value) for value in rows["converged"]] if "converged" in rows else [True] * len(rows)


def _fill(number: int) -> str:
    return FILLS[number % len(FILLS)]


def _hatch(number: int) -> str:
    return HATCHES[number % len(HATCHES)]


def _bar(axes: Axes, place: float, value: float, height: float, number: int, sure: bool) -> None:
    """A bar; a dashed empty one where the solver did not converge."""
    axes.barh(
        place,
        value,
        height,
        color=_fill(number) if sure else "white",
        hatch=_hatch(number),
        edgecolor="black",
        linewidth=0.8,
        linestyle="-" if sure else "--",
    )


def _beside(axes: Axes, value: float, place: float, text: str) -> None:
    axes.annotate(
        text, (value, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, annotation_clip=False
    )


def _with_spread(mean: float, spread: float) -> str:
    """A mean with as many decimals as its deviation has, at two digits of the deviation."""
    if not spread > 0:
        return f"{mean:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(spread)))
    return f"{mean:.{decimals}f} ± {spread:.{decimals}f}"


def _name_rows(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def _leave_room(axes: Axes, values: np.ndarray) -> None:
    """Start at 0 where nothing is negative, and leave room on the right for the longest number beside a bar."""
    left, right = axes.get_xlim()
    longest = max(len(note.get_text()) for note in axes.texts)
    axes.set_xlim(min(left, 0.0) if values.min() < 0 else 0.0, right + 0.025 * longest * (right - left))
    if values.min() < 0:
        axes.axvline(0, color="black", linewidth=0.8)


def _wrapped(name: str) -> str:
    """A long name in lines of 28 characters, broken anywhere it must."""
    return "\n".join(textwrap.wrap(name, 28)) or name


def _in_order(layers: Iterable[str]) -> list[str]:
    """Each layer once, the head after the layers of the deepest model."""
    return sorted(dict.fromkeys(layers), key=lambda name: name == "head")


def _short_layer(name: str) -> str:
    """`bert.encoder.layer.3` as `layer 3`; other names as they are."""
    found = re.search(r"(\d+)$", name)
    return f"layer {found.group(1)}" if found else name


def density_lines(
    frames: Mapping[str, pd.DataFrame],
    title: str = "Spectral density of the Hessian",
    unit: str = "nats",
    *,
    single: float | None = None,
) -> Figure:
    """Log densities of several models' eigenvalues on one axis, blurred by one kernel, over rugs of their nodes.

    Args:
        frames: The quadrature of each model by its name: columns node and weight.
        title: Over the figure.
        unit: Of the loss.
        single: Share of one eigenvalue, 1 / dimensions: a dashed line stands at the height of a single one.
    """
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
    height = (single or 1e-8) / (width * np.sqrt(2 * np.pi))
    floor = min(height, top) / 10
    with styled():
        figure = new_figure(6.8, 4.4)
        axes, rug = figure.subplots(2, 1, sharex=True, height_ratios=[12, len(frames)])
        for number, (name, density) in enumerate(densities.items()):
            colour = COLOURS[number % len(COLOURS)]
            shown = np.where(density > floor, density, np.nan)
            axes.plot(grid, shown, color=colour, linestyle=DASHES[number % len(DASHES)], label=name)
            rug.vlines(frames[name]["node"], number + 0.1, number + 0.9, color=colour, linewidth=0.8)
        if single is not None:
            axes.axhline(height, color="black", linestyle="--", linewidth=0.9)
            axes.annotate(
                "height of a single eigenvalue",
                (1, height),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
        axes.set_yscale("log")
        axes.set_ylim(floor, top * 4)
        axes.set_ylabel("density (share per unit of eigenvalue)")
        axes.set_title(f"{title}\nkernel width {width:.2g}")
        rug.set_ylim(len(frames), 0)
        rug.set_yticks(np.arange(len(frames)) + 0.5, list(frames), fontsize=8)
        rug.tick_params(axis="y", length=0)
        rug.set_xlabel(f"eigenvalue ({unit} per squared unit of weight)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
