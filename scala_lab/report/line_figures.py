"""Figures of loss and accuracy along lines in weight space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.errors import UserError
from scala_lab.report.style import COLOURS, DASHES, MARKERS, new_figure, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

DISTANCE = "distance (in lengths of the direction)"


def slice_1d_plot(
    frames: Mapping[str, pd.DataFrame],
    title: str = "Loss along a line through the checkpoint",
    x_label: str = DISTANCE,
    unit: str = "nats",
    *,
    marks: Sequence[float] = (0.0,),
) -> Figure:
    """Loss, and accuracy where there is one, along a line, for one or several models.

    Args:
        frames: What `slice_1d` returned, by the model's name.
        title: Over the figure.
        x_label: Of the position: the direction's label.
        unit: Of the loss.
        marks: Positions of checkpoints.

    A loss that spans more than a factor of 30 is drawn on a log scale; points without a finite value are left out.
    """
    require_columns(frames, "position", "loss")
    log_loss = spans_decades(np.concatenate([frame["loss"].to_numpy(float) for frame in frames.values()]))
    scored = any("accuracy" in frame and frame["accuracy"].notna().any() for frame in frames.values())
    with styled():
        figure = new_figure(6.6, 5.2 if scored else 3.6)
        panels = figure.subplots(1 + scored, 1, sharex=True, squeeze=False, height_ratios=[3, 2][: 1 + scored])[:, 0]
        for number, (name, frame) in enumerate(frames.items()):
            for axes, column, factor in zip(panels, ("loss", "accuracy"), (1, 100), strict=False):
                values = np.where(np.isfinite(frame[column]), frame[column], np.nan) * factor
                axes.plot(
                    frame["position"],
                    values,
                    label=name,
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=DASHES[number % len(DASHES)],
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=5,
                    markerfacecolor="white",
                    markevery=(number % 3, max(1, len(frame) // 10)),
                )
        for axes in panels:
            axes.grid(axis="y")
            low, high = axes.get_xlim()
            for mark in marks:
                if low <= mark <= high:
                    axes.axvline(mark, color="#888888", linewidth=0.8, zorder=0)
        panels[0].set_ylabel(f"mean loss ({unit})" + (", log scale" if log_loss else ""))
        if log_loss:
            panels[0].set_yscale("log")
        if scored:
            panels[1].set_ylabel("accuracy (%)")
        panels[-1].set_xlabel(x_label)
        if len(frames) > 1:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.5)
        panels[0].set_title(title)
    return figure


def spans_decades(values: np.ndarray) -> bool:
    """Whether positive values reach so far that small ones would vanish on a linear scale."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and float(finite.min()) > 0 and float(finite.max()) > 30 * float(finite.min())


def require_columns(frames: Mapping[str, pd.DataFrame], *columns: str) -> None:
    """Refuse a figure without models, or a slice without one of the columns."""
    if not frames:
        raise UserError("the figure needs at least one model's slice")
    for name, frame in frames.items():
        for column in columns:
            if column not in frame:
                raise UserError(f"the slice of {name or 'the model'} needs a column {column}")
