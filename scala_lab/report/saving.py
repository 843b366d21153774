"""Figures to files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from scala_lab.report.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
