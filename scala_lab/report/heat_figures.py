"""The heat map of accuracy over batch size and learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.errors import UserError
from scala_lab.report.style import BAD, COLOURMAP, new_figure, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def rate_heat_map(frame: pd.DataFrame, title: str = "Accuracy over batch size and learning rate") -> Figure:
    """Batch sizes as rows, rates as columns, accuracy in percent in each cell.

    The best cell of a row has a frame, dashed where it is the first or last of the grid. Cells whose runs diverged are
    hatched, missing ones empty. Two lines start at the best rate of the smallest batch: the square-root rule and the
    linear rule.

    Args:
        frame: One row per cell: batch_size, rate, score (mean over seeds; nan where there is none) and diverged.
        title: Over the figure.
    """
    for column in ("batch_size", "rate", "score", "diverged"):
        if column not in frame:
            raise UserError(f"the heat map's table needs a column {column}: it has {', '.join(map(str, frame))}")
    scores = frame.pivot_table("score", "batch_size", "rate", dropna=False)
    diverged = frame.pivot_table("diverged", "batch_size", "rate", aggfunc="max").reindex_like(scores)
    sizes, rates = scores.index.to_numpy(float), scores.columns.to_numpy(float)
    with styled():
        figure = new_figure(1.8 + 0.75 * len(rates), 1.9 + 0.55 * len(sizes))
        axes = figure.subplots()
        colours = axes.pcolormesh(
            _edges(np.log(rates)), np.arange(len(sizes) + 1) - 0.5, np.ma.masked_invalid(scores), cmap=COLOURMAP
        )
        axes.set_facecolor(BAD)
        middle = np.nanmean(colours.get_clim()) if np.isfinite(scores.to_numpy()).any() else 0.0
        for place, (size, row) in enumerate(scores.iterrows()):
            for rate, score in row.items():
                _write(axes, np.log(rate), place, score, bool(diverged.loc[size, rate] == 1), score < middle)
            if row.notna().any():
                _frame_best(axes, _edges(np.log(rates)), place, int(np.nanargmax(row)), len(rates))
        _rule_lines(axes, scores)
        axes.set_xticks(np.log(rates), [f"{rate:g}" for rate in rates])
        axes.set_yticks(range(len(sizes)), [f"{size:,.0f}" for size in sizes])
        axes.set_xlim(_edges(np.log(rates))[0], _edges(np.log(rates))[-1])
        axes.set_ylim(-0.5, len(sizes) - 0.5)
        axes.set_xlabel("peak learning rate, log scale")
        axes.set_ylabel("batch size")
        axes.set_title(title)
        if np.isfinite(scores.to_numpy()).any():
            figure.colorbar(colours, ax=axes, label="accuracy (%)", pad=0.02)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=2)
    return figure


def _edges(centres: np.ndarray) -> np.ndarray:
    """Borders half way between neighbours."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    between = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - between[0], *between, 2 * centres[-1] - between[-1]])


def _write(axes: Axes, x: float, y: float, score: float, diverged: bool, dark: bool) -> None:
    if np.isfinite(score):
        colour = "white" if dark else "black"
        axes.text(x, y - 0.22, f"{score:.1f}", ha="center", va="center", fontsize=8, color=colour, zorder=6)
    elif diverged:
        axes.text(x, y, "diverged", ha="center", va="center", fontsize=7, rotation=20, color="black")


def _frame_best(axes: Axes, edges: np.ndarray, place: int, column: int, columns: int) -> None:
    from matplotlib.patches import Rectangle

    edge = columns > 1 and column in (0, columns - 1)
    corner, width = (edges[column], place - 0.5), edges[column + 1] - edges[column]
    style = "--" if edge else "-"
    for line, colour in ((4.0, "white"), (2.0, "black")):
        axes.add_patch(
            Rectangle(corner, width, 1.0, fill=False, linewidth=line, linestyle=style, edgecolor=colour, zorder=3)
        )


def _rule_lines(axes: Axes, scores: pd.DataFrame) -> None:
    """Rates that the two rules would carry over from the best one of the smallest batch."""
    first = scores.iloc[0]
    if len(scores) < 2 or not first.notna().any():
        return
    start, sizes = np.log(float(first.idxmax())), scores.index.to_numpy(float)
    for power, dash, name in ((0.5, "-", "square-root rule"), (1.0, ":", "linear rule")):
        across = start + power * np.log(sizes / sizes[0])
        axes.plot(across, range(len(sizes)), linestyle=dash, color="white", linewidth=2.8, zorder=4)
        axes.plot(across, range(len(sizes)), linestyle=dash, color="#a02020", linewidth=1.4, label=name, zorder=5)
