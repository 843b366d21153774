"""Figures of a grid: heat maps of two axes with a panel for each combination of the others, or a line over one axis.

Each cell has the mean over seeds and, where there are several, half the width of its interval. Numbers stand in the
cells, so that nothing is told by colour alone; cells without a mean say why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from scala_lab.report.figures import style
from scala_lab.report.figures.style import Axes, DataFrame, Figure
from scala_lab.sweep.grid import setting_text

POINT = ("value", "low", "high", "runs", "diverged", "failed", "chosen")
"""Columns of a point beside its axes: mean and interval over seeds, counts of runs, whether it is a best setting."""

MAX_PANELS = 12
"""Panels of one figure."""

PER_ROW = 2  # few enough for a narrow page
NOTHING = "\N{EN DASH}"  # of an axis that is an option which the method does not have


def axis_values(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values of an axis in order: none first, numbers by size, others as they come."""
    distinct = list(dict.fromkeys(None if _absent(value) else value for value in values))
    numbers: list[Any] = sorted(value for value in distinct if _is_number(value))  # type: ignore[type-var]
    return [
        *(value for value in distinct if value is None),
        *numbers,
        *(v for v in distinct if v not in (None, *numbers)),
    ]


def axis_text(value: Any) -> str:
    """Write a value of an axis; a number as short as it is, a path without its folders."""
    return NOTHING if _absent(value) else setting_text(value).rpartition("/")[2]


def _absent(value: Any) -> bool:
    return value is None or value != value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@style.styled()
def heat_map_figure(frame: DataFrame, rows: str, columns: str, *, title: str, label: str) -> list[Figure]:
    """Draw heat maps of two axes; every other axis of the frame makes panels, up to `MAX_PANELS` in a figure.

    `frame` has one row per point: its axes, then the columns `POINT`. A best setting has a frame, dashed where it lies
    at the end of an axis with numbers. All panels of a task share their colours; each task has figures of its own.
    """
    style.require_columns(frame, rows, columns, *POINT)
    others = [name for name in frame.columns if name not in (rows, columns, *POINT)]
    figures = []
    for _, part in frame.groupby("task", sort=False, dropna=False) if "task" in others else [("", frame)]:
        panels = list(part.groupby(others, sort=False, dropna=False)) if others else [((), part)]
        for first in range(0, len(panels), MAX_PANELS):
            shown = panels[first : first + MAX_PANELS]
            figures.append(_heat_maps(part, others, shown, rows, columns, title, label))
    return figures


def _heat_maps(
    part: DataFrame, others: Sequence[str], panels: Sequence[Any], rows: str, columns: str, title: str, label: str
) -> Figure:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    low, high = float(part["value"].min()), float(part["value"].max())
    finite = math.isfinite(low)
    margin = 0.0 if high - low > 1e-6 else 0.5  # equal cells have the colour of the middle
    scale = Normalize(low - margin, high + margin) if finite else None
    digits = _digits(low, high)
    most_rows = max(len(axis_values(panel[rows])) for _, panel in panels)
    most_columns = max(len(axis_values(panel[columns])) for _, panel in panels)
    across = min(PER_ROW, len(panels))
    down = math.ceil(len(panels) / across)
    width = across * (0.9 + 0.78 * most_columns) + 1.2
    figure = style.new_figure(max(4.4, width), down * (0.85 + 0.56 * most_rows) + 0.55)
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (key, panel) in zip(grid, panels, strict=False):
        _heat_map(axes, panel, rows, columns, scale, digits)
        named = [(name, value) for name, value in zip(others, key, strict=True) if not _absent(value)]
        words = [f"{name.replace('_', ' ')} {axis_text(value)}" for name, value in named]
        axes.set_title(", ".join(word.removeprefix("method ") for word in words), fontsize=10)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if scale is not None:
        colours = ScalarMappable(scale, style.COLOURMAP)
        figure.colorbar(colours, ax=[axes for axes in grid if axes.get_visible()], label=label, pad=0.02)
    figure.suptitle(title)
    return figure


def _digits(low: float, high: float) -> int:
    """Return the decimals that tell cells apart: one of numbers like 91.3, more of small ones and of narrow ranges."""
    if not math.isfinite(low):
        return 1
    spread = max(high - low, 1e-12)
    wanted = 1 if max(abs(low), abs(high)) >= 10 else 3
    return wanted + 1 if spread < 10.0**-wanted * 10 else wanted


def _heat_map(axes: Axes, panel: DataFrame, rows: str, columns: str, scale: Any, digits: int) -> None:
    from matplotlib import colormaps

    down, across = axis_values(panel[rows]), axis_values(panel[columns])
    axes.set_facecolor(style.BAD)
    axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(down) - 0.5))
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    for point in panel.to_dict("records"):
        x, y = (
            values.index(None if _absent(point[name]) else point[name])
            for values, name in ((across, columns), (down, rows))
        )
        ink = "black"
        if math.isfinite(point["value"]):
            red, green, blue, _ = colour = colormaps[style.COLOURMAP](scale(point["value"]))
            axes.add_patch(_box(x, y, facecolor=colour))
            ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.46 else "black"
            lines = [f"{point['value']:.{digits}f}"]
            if math.isfinite(point["low"]):
                lines.append(f"±{(point['high'] - point['low']) / 2:.{digits}f}")
        else:
            lines = []
        lines += [
            f"{count} of {point['runs']} {word}" if count < point["runs"] else word for word, count in _lost(point)
        ]
        for number, line in enumerate(lines):
            size = 9 if number == 0 and math.isfinite(point["value"]) else 7
            place = y + 0.24 * ((len(lines) - 1) / 2 - number) * min(1.0, 3 / len(lines))
            axes.text(x, place, line, fontsize=size, color=ink, zorder=6, **middle)
        if point["chosen"]:
            ends = [at in (0, len(values) - 1) for at, values in ((x, across), (y, down)) if _has_ends(values)]
            for thickness, colour in ((4.0, "white"), (2.0, "black")):
                look: dict[str, Any] = {
                    "edgecolor": colour,
                    "linewidth": thickness,
                    "linestyle": "--" if any(ends) else "-",
                }
                axes.add_patch(_box(x, y, margin=0.03, fill=False, zorder=5, **look))
    axes.set_xticks(range(len(across)), [axis_text(value) for value in across])
    axes.set_yticks(range(len(down)), [axis_text(value) for value in down])
    axes.tick_params(length=0)
    axes.set(xlabel=columns.replace("_", " "), ylabel=rows.replace("_", " "))


def _lost(point: dict[str, Any]) -> list[tuple[str, int]]:
    return [(word, int(point[word])) for word in ("diverged", "failed") if point[word]]


def _has_ends(values: Sequence[Any]) -> bool:
    """Whether an axis goes on beyond its first and last value: numbers, at least three of them."""
    return len(values) > 2 and all(_is_number(value) for value in values if value is not None)


def _box(x: int, y: int, margin: float = 0.0, **look: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5 + margin, y - 0.5 + margin), 1 - 2 * margin, 1 - 2 * margin, **look)


@style.styled()
def axis_figure(frame: DataFrame, axis: str, *, title: str, label: str) -> Figure:
    """Draw the means over the values of one axis, with intervals over seeds as whiskers; the best setting is filled.

    `frame` has one row per point: the axis, then the columns `POINT`. Values without a mean are named on the axis.
    """
    style.require_columns(frame, axis, *POINT)
    values = axis_values(frame[axis])
    numbers = [value for value in values if value is not None]
    numeric = all(map(_is_number, numbers)) and len(numbers) == len(values)
    is_log = numeric and min(numbers) > 0 and max(numbers) > 8 * min(numbers)
    figure = style.new_figure(max(4.6, 1.6 + 0.75 * len(values)), 3.4)
    axes = figure.subplots()
    points = frame.assign(
        x=[value if numeric else values.index(None if _absent(value) else value) for value in frame[axis]]
    )
    points = points.sort_values("x", kind="stable")
    look = style.line_style(0, markersize=7)
    spread = (points["high"] - points["value"]).where(points["low"].notna())
    if not numeric:
        look["linestyle"] = "none"
    axes.errorbar(points["x"], points["value"], yerr=spread, capsize=4, elinewidth=1.1, zorder=3, **look)
    best = points[points["chosen"]]
    axes.plot(best["x"], best["value"], linestyle="none", marker="o", markersize=7, color=look["color"], zorder=4)
    axes.set(xscale="log" if is_log else "linear")
    names = {x: axis_text(value) for x, value in zip(points["x"], points[axis], strict=True)}
    for point in points.to_dict("records"):
        lost = [f"{count} of {point['runs']} {word}" for word, count in _lost(point)]
        names[point["x"]] += "".join(f"\n{text}" for text in lost)
    axes.xaxis.set_ticks(list(names), list(names.values()))
    axes.xaxis.set_ticks([], minor=True)
    first, last = points["x"].iloc[0], points["x"].iloc[-1]  # also where there is no mean to draw
    margin = (last / first) ** 0.08 if is_log else 0.08 * (last - first) if numeric and last > first else 0.5
    axes.set_xlim(*((first / margin, last * margin) if is_log else (first - margin, last + margin)))
    axes.margins(y=0.15)
    axes.grid(axis="y")
    axes.set(xlabel=axis.replace("_", " "), ylabel=label, title=title)
    return figure
