"""Figures that set the spectra of several models beside one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.curvature.density import MARGIN, gaussian_mixture
from scala_lab.errors import UserError
from scala_lab.report.style import COLOURS, DASHES, new_figure, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
