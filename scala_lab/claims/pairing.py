"""Two methods side by side over the same models, tasks and seeds: the numbers most claims on accuracy rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.statistics import Estimate, mean_interval, paired_columns, paired_difference, paired_ratio

if TYPE_CHECKING:
    import pandas as pd

EQUAL = 0.5
"""Points of accuracy within which two methods count as equal: below the 0.8 that the paper claims for its method."""

PAIRS = ("model", "task", "seed")
"""What two runs of a pair share; columns that a frame lacks are left out."""


def difference(
    frame: pd.DataFrame,
    left: object,
    right: object,
    *,
    column: str = "method",
    value: str = "score",
    pairs: Sequence[str] = PAIRS,
) -> Estimate:
    """Mean of left - right over pairs, in points."""
    sides = _sides(frame, left, right, column, value, pairs)
    return paired_difference(sides["left"], sides["right"])


def ratio(
    frame: pd.DataFrame,
    left: object,
    right: object,
    *,
    column: str = "method",
    value: str = "train_seconds",
    pairs: Sequence[str] = PAIRS,
) -> Estimate:
    """Geometric mean of left / right over pairs."""
    sides = _sides(frame, left, right, column, value, pairs)
    return paired_ratio(sides["left"], sides["right"])


def mean_slope(frame: pd.DataFrame, across: str, value: str = "score", pairs: Sequence[str] = PAIRS) -> Estimate:
    """Mean over pairs of the slope of a least-squares line: levels that differ between tasks do not enter."""
    keys = [name for name in pairs if name in frame.columns]
    slopes = [
        float(np.polyfit(rows[across], rows[value], 1)[0])
        for _, rows in frame.dropna(subset=[across, value]).groupby(keys)
        if rows[across].nunique() > 1
    ]
    return mean_interval(slopes, "points")


def _sides(
    frame: pd.DataFrame, left: object, right: object, column: str, value: str, pairs: Sequence[str]
) -> pd.DataFrame:
    keys = [name for name in pairs if name in frame.columns]
    return paired_columns(frame[[*keys, column, value]], value, column, left, right)
