"""The look that all figures share, readable in print, in grey and by the colour-blind; saving figures.

Models never differ in colour alone: lines differ in dash and marker, bars in hatch, colours in lightness. Surfaces use
cividis, whose lightness grows with the value.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series
else:
    Axes = Axis = Normalize = Figure = DataFrame = Series = Any  # only named in signatures: to import them takes long

COLOURS = ("#0b2f66", "#d1660a", "#5c8a3a", "#a83279", "#7a7f85", "#3aa0c9")
"""Of lines; colours of similar lightness differ in dash and marker."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P")
FILLS = ("#35507c", "#e0ad7d", "#f2f2f2", "#8d9a86", "#c6d5e8", "#6b6b6b")
HATCHES = ("", "///", "...", "\\\\\\", "xx", "++")
COLOURMAP = "cividis"
BAD = "#d9d9d9"
"""Where a surface has no finite value."""

STYLE_FILE = Path(__file__).with_name("scala_lab.mplstyle")


@contextmanager
def styled() -> Iterator[None]:
    """Apply the shared settings while a figure is drawn or saved, then restore the user's own."""
    import matplotlib.style

    with matplotlib.style.context(STYLE_FILE):
        yield


def require_columns(frame: DataFrame, *columns: str) -> None:
    """Refuse a table that is empty or lacks a column that the figure needs."""
    for column in columns:
        if column not in frame:
            raise UserError(f"the figure's table needs a column {column}: it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise UserError("the figure's table has no rows")


def line_style(index: int, **changes: Any) -> dict[str, Any]:
    """Return colour, dash and marker of the index-th line of a figure."""
    colour, dash, marker = (kinds[index % len(kinds)] for kinds in (COLOURS, DASHES, MARKERS))
    return {"color": colour, "linestyle": dash, "marker": marker, "markerfacecolor": "white", **changes}


def line_with_band(axes: Axes, x: Series, rows: DataFrame, label: str, style: dict[str, Any]) -> None:
    """Draw a line through the column `value` of rows, in a band from `low` to `high` where they have those columns."""
    axes.plot(x, rows["value"], label=label, **style)
    if {"low", "high"} <= set(rows):
        axes.fill_between(x, rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)


def bar_style(index: int, **changes: Any) -> dict[str, Any]:
    """Return fill, hatch and edge of the index-th kind of bar of a figure."""
    fill, hatch = FILLS[index % len(FILLS)], HATCHES[index % len(HATCHES)]
    return {"facecolor": fill, "hatch": hatch, "edgecolor": "black", "linewidth": 0.8, **changes}


def spans_decades(values: np.ndarray) -> bool:
    """Whether all finite values are positive and small ones would vanish on a linear scale."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(finite.min() > 0 and finite.max() > 30 * finite.min())


def round_numbers(low: float, high: float, digits: Iterable[int]) -> list[float]:
    """Return the numbers from low to high that are one of the digits times a power of ten, for ticks of a log scale."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [digit * 10.0**power for power in powers for digit in digits]
    return [number for number in numbers if low <= number <= high]


def set_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    """Mark some numbers on an axis, written plainly, and nothing between them."""
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def legend_below(figure: Figure, ncols: int, looks: Mapping[str, dict[str, Any]] | None = None, **style: Any) -> None:
    """Explain all labels of a figure below it, each once, and then black lines by their looks."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    handles |= {name: Line2D([], [], color="black", **look) for name, look in (looks or {}).items()}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=ncols, **style)


def label_rows(axes: Axes, labels: list[str]) -> None:
    """Write a label beside each row of horizontal bars, the first row on top, over a grid of vertical lines."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, size in inches, that needs no window and is not registered with pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure


def figure_files(figure: Figure, face: str = "") -> dict[str, bytes]:
    """Render a PNG for screens and an SVG for print, by ending; no date, so that equal figures give equal bytes.

    `face` is written small below the figure, inside of the image.
    """
    png, svg = io.BytesIO(), io.BytesIO()
    with styled():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for legend in figure.legends:  # stays where the layout put it: saving would move it to the edge of the image
            legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
        if face:
            box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
            look: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 7.5, "style": "italic", "color": "#555555"}
            figure.text(box.x1 / width, (box.y0 - 0.05) / height, face, **look)
        figure.savefig(png, format="png", dpi=160, bbox_inches="tight", metadata={"Software": None})
        figure.savefig(svg, format="svg", bbox_inches="tight", metadata={"Date": None})
    return {".png": png.getvalue(), ".svg": svg.getvalue()}


def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem`.png and `stem`.svg."""
    for ending, content in figure_files(figure).items():
        stem.with_name(stem.name + ending).write_bytes(content)
