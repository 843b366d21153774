"""Differences with intervals: what every verdict is computed from.

Comparisons are paired: the same task, rows and seed under two methods. Intervals are Student's t over the pairs, of
differences, or of log ratios where a factor is claimed. With fewer than two pairs there is no interval, and nothing
can be decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: Mean difference, geometric mean of ratios, or slope.
        low: Lower end of the interval; -inf where there is none.
        high: Upper end; inf where there is none.
        n: Pairs or points behind it.
        effect_size: Mean over standard deviation of the paired differences (Cohen's d_z); nan where undefined.
        unit: `points`, `x` for factors, or '' for a plain number.
        level: Of the interval.
    """

    value: float
    low: float
    high: float
    n: int
    effect_size: float = math.nan
    unit: str = ""
    level: float = LEVEL

    @property
    def decided(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        unit = {"x": "x", "": ""}.get(self.unit, f" {self.unit}")
        if not math.isfinite(self.value):
            return "no value"
        sign = "+" if self.unit == "points" else ""
        if not self.decided:
            return f"{self.value:{sign}.3g}{unit} (n={self.n}, no interval)"
        return f"{self.value:{sign}.3g}{unit} [{self.low:{sign}.3g}, {self.high:{sign}.3g}] (n={self.n})"


def mean_interval(values: Sequence[float] | np.ndarray, unit: str = "", level: float = LEVEL) -> Estimate:
    """Mean of finite values with Student's t interval."""
    from scipy import stats

    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found)]
    count = len(found)
    if count == 0:
        return Estimate(math.nan, -math.inf, math.inf, 0, unit=unit, level=level)
    mean = float(found.mean())
    if count == 1:
        return Estimate(mean, -math.inf, math.inf, 1, unit=unit, level=level)
    deviation = float(found.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, count - 1)) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, mean / deviation if deviation else math.nan, unit, level)


def paired_difference(
    left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray, unit: str = "points", level: float = LEVEL
) -> Estimate:
    """Mean of left - right over pairs; pairs with a value that is not finite are left out."""
    return mean_interval(np.asarray(left, dtype=float) - np.asarray(right, dtype=float), unit, level)


def paired_ratio(
    left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray, level: float = LEVEL
) -> Estimate:
    """Geometric mean of left / right over pairs, interval from the logs; values must be positive to count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(left, dtype=float)) - np.log(np.asarray(right, dtype=float))
    found = mean_interval(logs, level=level)
    return Estimate(
        math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n, found.effect_size, "x", level
    )


def slope_interval(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, level: float = LEVEL) -> Estimate:
    """Slope of a least-squares line with its t interval; points that are not finite are left out."""
    from scipy import stats

    across, up = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    kept = np.isfinite(across) & np.isfinite(up)
    across, up = across[kept], up[kept]
    if len(np.unique(across)) < 2:
        return Estimate(math.nan, -math.inf, math.inf, len(across), level=level)
    line = stats.linregress(across, up)
    if len(across) == 2:
        return Estimate(float(line.slope), -math.inf, math.inf, 2, level=level)
    half = float(stats.t.ppf((1 + level) / 2, len(across) - 2)) * float(line.stderr)
    return Estimate(float(line.slope), float(line.slope) - half, float(line.slope) + half, len(across), level=level)


def paired_columns(frame: pd.DataFrame, value: str, column: str, left: object, right: object) -> pd.DataFrame:
    """Values of two methods side by side, columns `left` and `right`, one row per everything else they share.

    Args:
        frame: One row per run, with only the columns that identify it beside `value` and `column`.
        value: The column compared.
        column: What tells the two sides apart, such as `method`.
        left: Its value on the left side.
        right: Its value on the right side.

    Raises:
        ValueError: A side has two values for the same keys: the frame holds a column too few.
    """
    keys = [name for name in frame.columns if name not in (value, column)]
    sides = [frame[frame[column] == side].set_index(keys)[value] for side in (left, right)]
    for side in sides:
        if side.index.has_duplicates:
            raise ValueError(f"several rows share {keys}: a column that tells them apart is missing")
    return sides[0].to_frame("left").join(sides[1].to_frame("right"), how="inner")


def tuned(frame: pd.DataFrame, by: Sequence[str], rate: str = "rate", score: str = "score") -> pd.DataFrame:
    """The rows at each group's best rate, with a column `edge` that says whether that rate ends its grid.

    The best rate has the highest mean score over seeds. A rate at which any seed diverged counts with nan as the
    lowest. A grid of one rate has no edge to speak of.
    """
    import pandas as pd

    kept = []
    for _, group in frame.groupby(list(by), sort=False):
        means = group.groupby(rate)[score].apply(lambda values: values.mean(skipna=False))
        if means.notna().any():
            best = means.idxmax()
            grid = sorted(means.index)
            edge = len(grid) > 1 and best in (grid[0], grid[-1])
            kept.append(group[group[rate] == best].assign(edge=edge, grid_points=len(grid)))
    return pd.concat(kept) if kept else frame.iloc[:0].assign(edge=False, grid_points=0)
