"""The options of `scala-lab landscape`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from scala_lab.commands.samples import SampleOptions
from scala_lab.spec import DataSpec


@dataclass(frozen=True)
class Landscape:
    """Loss and accuracy around checkpoints, along lines and over planes in weight space, several on one scale.

    --out gets the figures (PNG and SVG), line.csv, plane.csv and landscape.json. The loss is the plain task loss over
    a fixed, seeded set of rows, in eval mode. Without --task the rows are those that the first run folder was
    trained on.

        scala-lab landscape runs/a runs/b runs/c --out landscape
        scala-lab landscape model --task sst2 --data-dir glue --directions random --span -0.5 0.5 --out landscape
        scala-lab landscape runs/a runs/b --directions between --plane-points 0 --out path
    """

    checkpoints: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, or folders that hold config.json and model.safetensors."""
    data: DataSpec = field(default_factory=DataSpec)
    over: SampleOptions = field(default_factory=SampleOptions)
    directions: Literal["eigenvectors", "random", "between"] = "eigenvectors"
    """eigenvectors: each model's two sharpest directions, of unit length and uphill; random: two random ones,
    filter-normalised (each row as long as the weights' row); between: from the first checkpoint to each of the others,
    and for the plane a random one across."""
    line_points: int = 41
    """Points along each line; 0 for no lines."""
    plane_points: int = 21
    """Points along each side of a plane; 0 for no planes."""
    span: tuple[float, float] | None = None
    """First and last position, the checkpoint being at 0; default -1 1, or -0.5 1.5 between checkpoints at 0 and 1."""
    tol: float = 1e-3
    """Eigenvectors: largest residual of a converged pair."""
    max_products: int = 300
    """Eigenvectors: stop the solver after this many Hessian-vector products."""
    out: Path | None = None
    """Folder for figures and tables; needed."""

    @property
    def x_span(self) -> tuple[float, float]:
        """First and last position along a line."""
        return self.span or ((-0.5, 1.5) if self.directions == "between" else (-1.0, 1.0))

    @property
    def y_span(self) -> tuple[float, float]:
        """First and last position across: as far as along, but around 0 where x runs from one model to another."""
        low, high = self.x_span
        return ((low - high) / 2, (high - low) / 2) if self.directions == "between" else (low, high)
