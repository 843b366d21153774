"""Figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem`.png for screens and `stem`.svg for print; without a date, so that equal figures are equal files."""
    figure.savefig(stem.with_name(stem.name + ".png"), dpi=160, bbox_inches="tight", metadata={"Software": None})
    figure.savefig(stem.with_name(stem.name + ".svg"), bbox_inches="tight", metadata={"Date": None})
