"""Figures of loss landscapes along lines and over planes in weight space, several models on one scale.

A loss that spans more than a factor of 30 is drawn on a log scale; points without a finite value are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from scala_lab.errors import UserError
from scala_lab.report.figures import style
from scala_lab.report.figures.style import Axes, DataFrame, Figure, Normalize


@style.styled()
def slice_1d_plot(
    frames: Mapping[str, DataFrame], title: str, x_label: str, unit: str = "nats", *, marks: Sequence[float] = (0.0,)
) -> Figure:
    """Draw loss, and accuracy where there is one, along a line, for one or several models.

    `frames` has what `slice_1d` returned, by the model's name; `marks` are positions of checkpoints.
    """
    _check_slices(frames, "position", "loss")
    log_loss = style.spans_decades(np.concatenate([frame["loss"].to_numpy(float) for frame in frames.values()]))
    scored = any("accuracy" in frame and frame["accuracy"].notna().any() for frame in frames.values())
    figure = style.new_figure(6.6, 5.2 if scored else 3.6)
    panels = figure.subplots(1 + scored, 1, sharex=True, squeeze=False, height_ratios=[3, 2][: 1 + scored])[:, 0]
    for index, (name, frame) in enumerate(frames.items()):
        look = style.line_style(index, markersize=5, markevery=(index % 3, max(1, len(frame) // 10)))
        for axes, column, factor in zip(panels, ("loss", "accuracy"), (1, 100), strict=False):
            values = np.where(np.isfinite(frame[column]), frame[column], np.nan) * factor
            axes.plot(frame["position"], values, label=name, **look)
    for axes in panels:
        axes.grid(axis="y")
        low, high = axes.get_xlim()
        for mark in marks:
            if low <= mark <= high:
                axes.axvline(mark, color="#888888", linewidth=0.8, zorder=0)
    panels[0].set(title=title, ylabel=f"mean loss ({unit})" + (", log scale" if log_loss else ""))
    panels[0].set_yscale("log" if log_loss else "linear")
    if scored:
        panels[1].set_ylabel("accuracy (%)")
    panels[-1].set_xlabel(x_label)
    if len(frames) > 1:
        style.legend_below(figure, 3, handlelength=3.5)
    return figure


def _check_slices(frames: Mapping[str, DataFrame], *columns: str) -> None:
    if not frames:
        raise UserError("the figure needs at least one model's slice")
    for name, frame in frames.items():
        for column in columns:
            if column not in frame:
                raise UserError(f"the slice of {name or 'the model'} needs a column {column}")


Value = Literal["loss", "accuracy"]
Grid = tuple[np.ndarray, np.ndarray, np.ma.MaskedArray]
BANDS = 14  # filled bands of a contour plot; every other edge is drawn and labelled


@style.styled()
def side_by_side(
    frames: Mapping[str, DataFrame],
    title: str,
    x_label: str,
    y_label: str,
    unit: str = "nats",
    *,
    kind: Literal["contour", "surface"] = "contour",
    value: Value = "loss",
    marks: Sequence[float] = (0.0,),
) -> Figure:
    """Draw several models' planes on one scale of colour and height, so that they can be compared by eye.

    `frames` has what `slice_2d` returned, by the model's name; `marks` are positions of checkpoints on the x axis.
    """
    _check_slices(frames, "x", "y", value)
    grids = [_grid(frame, value) for frame in frames.values()]
    scale, logarithmic = _shared_scale(grids, value)
    surface = kind == "surface"
    name = "height and colour: " if surface else ""
    name += (f"mean loss ({unit})" if value == "loss" else "accuracy (%)") + (", log scale" if logarithmic else "")
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import FuncFormatter, NullFormatter

    columns = min(len(grids), 3)
    rows = -(-len(grids) // columns)
    figure = style.new_figure(1.4 + 3.7 * columns, 0.8 + 3.3 * rows)
    shared: dict[str, Any] = {"subplot_kw": {"projection": "3d"}} if surface else {"sharex": True, "sharey": True}
    panels: Any = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes, label, grid in zip(panels.flat, frames, grids, strict=False):
        if surface:
            _draw_surface(axes, grid, scale, logarithmic)
        else:
            _draw_contour(axes, grid, scale, marks)
        axes.set_title(label)
    for axes in panels.flat[len(grids) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=11)
    if surface:
        figure.supxlabel(f"x: {x_label}\ny: {y_label}", fontsize=9)
    else:
        figure.supxlabel(_wrap_unit(x_label, 44 * columns), fontsize=10)
        figure.supylabel(_wrap_unit(y_label, 40 * rows), fontsize=10)
    mappable = ScalarMappable(norm=scale, cmap=style.COLOURMAP)
    bar = figure.colorbar(mappable, ax=list(panels.flat), label=name, shrink=0.8, pad=0.06 if surface else 0.02)
    if logarithmic:
        bar.set_ticks(_round_levels(scale))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda level, _: f"{level:g}"))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _grid(frame: DataFrame, value: Value) -> Grid:
    """Return positions as meshes and the values on them; what is not finite is masked."""
    table = frame.pivot(index="y", columns="x", values=value)
    x, y = np.meshgrid(table.columns.to_numpy(float), table.index.to_numpy(float))
    return x, y, np.ma.masked_invalid(table.to_numpy(float) * (100 if value == "accuracy" else 1))


def _shared_scale(grids: list[Grid], value: Value) -> tuple[Normalize, bool]:
    from matplotlib.colors import LogNorm, Normalize

    finite = np.concatenate([z.compressed() for _, _, z in grids])
    if not len(finite):
        raise UserError(f"no point of the plane has a finite {value}: look closer to the checkpoint")
    low, high = float(finite.min()), float(finite.max())
    if high <= low:
        low, high = low - 0.5, high + 0.5
    logarithmic = value == "loss" and style.spans_decades(finite)
    return (LogNorm if logarithmic else Normalize)(low, high), logarithmic


def _wrap_unit(label: str, max_length: int) -> str:
    """Put the unit of a label on a second line where one is too short."""
    return label if len(label) <= max_length else label.replace(" (", "\n(", 1)


def _round_levels(scale: Normalize) -> list[float]:
    """Return round numbers within a log scale: 1, 2, 5 of each decade, or the decades alone where there are many."""
    assert scale.vmin is not None and scale.vmax is not None  # noqa: PT018
    decades = np.ceil(np.log10(scale.vmax)) - np.floor(np.log10(scale.vmin))
    return style.round_numbers(scale.vmin, scale.vmax, (1, 2, 5) if decades <= 3 else (1,))


def _draw_contour(axes: Axes, grid: Grid, scale: Normalize, marks: Sequence[float]) -> None:
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import MaxNLocator

    edges = np.asarray(scale.inverse(np.linspace(0, 1, BANDS + 1)), dtype=float)
    axes.set_facecolor(style.BAD)
    axes.contourf(*grid, levels=edges, norm=scale, cmap=style.COLOURMAP)
    drawn = edges[1:-1:2]
    colours = ["black" if float(scale(edge)) > 0.5 else "white" for edge in drawn]
    lines = axes.contour(*grid, levels=drawn, colors=colours, linewidths=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    for mark in marks:
        axes.plot(mark, 0, marker="o", markersize=6, markerfacecolor="white", markeredgecolor="black")
    occupied = [_axes_fraction(axes, (mark, 0)) for mark in marks]
    for text in axes.clabel(lines, fmt=lambda level: f"{level:.2g}", fontsize=7, inline=False):
        position = _axes_fraction(axes, text.get_position())
        crowded = any(np.abs(position - other).max() < 0.09 for other in occupied)
        text.set_visible(not crowded and position.min() >= 0.06 and position.max() <= 0.94)
        text.set(color="black", path_effects=[withStroke(linewidth=2, foreground="white")])
        occupied += [position] if text.get_visible() else []


def _axes_fraction(axes: Axes, position: tuple[float, float]) -> np.ndarray:
    """Convert data coordinates to fractions of the panel."""
    return axes.transAxes.inverted().transform(axes.transData.transform(position))


def _draw_surface(axes: Any, grid: Grid, scale: Normalize, logarithmic: bool) -> None:
    """Give each face the mean colour of its corners, and leave it out where a corner has no value.

    3-D axes have no log scale: there the height is log10 of the value, and ticks show the value.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    x, y, z = grid
    height = np.ma.log10(z) if logarithmic else z
    shades = np.asarray(scale(z.filled(np.nan)), dtype=float)
    faces = (shades[1:, 1:] + shades[1:, :-1] + shades[:-1, 1:] + shades[:-1, :-1]) / 4
    look = {"shade": False, "rstride": 1, "cstride": 1, "edgecolor": "#00000070", "linewidth": 0.3}
    axes.plot_surface(x, y, height.filled(np.nan), facecolors=colormaps[style.COLOURMAP](faces), **look)
    bounds = np.array([scale.vmin, scale.vmax], dtype=float)
    axes.set_zlim(*(np.log10(bounds) if logarithmic else bounds))
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(4))
    if logarithmic:
        levels = _round_levels(scale)
        axes.set_zticks(np.log10(levels), [f"{level:g}" for level in levels])
    axes.set(xlabel="x", ylabel="y")
    axes.tick_params(labelsize=7, pad=1)
    axes.view_init(elev=35, azim=-58)
    axes.set_box_aspect((4, 4, 3), zoom=0.95)
