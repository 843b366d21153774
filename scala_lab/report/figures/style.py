"""The look that all figures share, and saving them.

The look that all figures share: readable in print, in grey and by the colour-blind.

What differs between models is never colour alone: lines differ in dash and marker, bars in hatch, and colours in
lightness. Surfaces use cividis, whose lightness grows with the value.

Figures to files.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLOURS = ("#0b2f66", "#d1660a", "#5c8a3a", "#a83279", "#7a7f85", "#3aa0c9")
"""Of lines; those of like lightness differ in dash and marker."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P")
FILLS = ("#35507c", "#e0ad7d", "#f2f2f2", "#8d9a86", "#c6d5e8", "#6b6b6b")
HATCHES = ("", "///", "...", "\\\\\\", "xx", "++")
COLOURMAP = "cividis"
BAD = "#d9d9d9"
"""Where a surface has no finite value."""

SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": "#cccccc",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "hatch.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "scala-lab",
    "figure.facecolor": "white",
}


@contextmanager
def styled() -> Iterator[None]:
    """The shared settings while a figure is drawn or saved; the user's own are put back."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, that needs no window and is not kept by pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure


def figure_files(figure: Figure) -> dict[str, bytes]:
    """A PNG for screens and an SVG for print, by ending; without a date, so that equal figures are equal files."""
    png, svg = io.BytesIO(), io.BytesIO()
    with styled():
        figure.savefig(png, format="png", dpi=160, bbox_inches="tight", metadata={"Software": None})
        figure.savefig(svg, format="svg", bbox_inches="tight", metadata={"Date": None})
    return {".png": png.getvalue(), ".svg": svg.getvalue()}


def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem`.png and `stem`.svg."""
    for ending, content in figure_files(figure).items():
        stem.with_name(stem.name + ending).write_bytes(content)
