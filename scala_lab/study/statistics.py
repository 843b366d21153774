"""Differences and ratios with confidence intervals, from which every verdict is computed.

Comparisons are paired: the same task, rows and seed under two methods. Intervals are Student's t over the pairs, of
differences, or of log ratios where a factor is claimed. With fewer than two pairs there is no interval, and nothing
can be decided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float  # mean difference, geometric mean of ratios, or slope
    low: float  # lower end of the interval; -inf where there is none
    high: float  # upper end; inf where there is none
    n: int  # pairs or points behind it
    effect_size: float = math.nan  # mean over standard deviation of the paired differences (Cohen's d_z)
    unit: str = ""  # `points`, `x` for factors, or '' for a plain number

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


def mean_interval(values: ArrayLike, unit: str = "") -> Estimate:
    """Return the mean of the finite values with Student's t interval.

    Example:
        >>> str(mean_interval([1.0, 2.0, 3.0], "points"))
        '+2 points [-0.484, +4.48] (n=3)'
    """
    from scipy import stats

    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    count = len(finite)
    if count < 2:
        return Estimate(float(finite[0]) if count else math.nan, -math.inf, math.inf, count, unit=unit)
    mean, deviation = float(finite.mean()), float(finite.std(ddof=1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, mean / deviation if deviation else math.nan, unit)


def paired_difference(left: ArrayLike, right: ArrayLike) -> Estimate:
    """Return the mean of left - right over pairs, in points; pairs with a value that is not finite are left out."""
    return mean_interval(np.asarray(left, dtype=float) - np.asarray(right, dtype=float), "points")


def paired_ratio(left: ArrayLike, right: ArrayLike) -> Estimate:
    """Return the geometric mean of left / right over pairs, interval from the logs; both must be positive to count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = mean_interval(np.log(np.asarray(left, dtype=float)) - np.log(np.asarray(right, dtype=float)))
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n, logs.effect_size, "x")


def slope_interval(x: ArrayLike, y: ArrayLike) -> Estimate:
    """Return the slope of a least-squares line with its t interval; points that are not finite are left out."""
    from scipy import stats

    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    finite = np.isfinite(xs) & np.isfinite(ys)
    xs, ys = xs[finite], ys[finite]
    count = len(xs)
    if len(np.unique(xs)) < 2:
        return Estimate(math.nan, -math.inf, math.inf, count)
    line = stats.linregress(xs, ys)
    slope = float(line.slope)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 2)) * float(line.stderr) if count > 2 else math.inf
    return Estimate(slope, slope - half, slope + half, count)


def paired_columns(frame: pd.DataFrame, value: str, column: str, left: object, right: object) -> pd.DataFrame:
    """Return the values of two methods in columns `left` and `right`, one row per pair of runs equal in all else.

    `column`, such as `method`, tells the two sides apart; all columns but it and `value` identify a pair. Raises
    ValueError if a side has two values for the same pair: the frame lacks a column.
    """
    keys = [name for name in frame.columns if name not in (value, column)]
    sides = [frame[frame[column] == side].set_index(keys)[value] for side in (left, right)]
    if any(side.index.has_duplicates for side in sides):
        raise ValueError(f"several rows share {keys}: a column that tells them apart is missing")
    return sides[0].to_frame("left").join(sides[1].to_frame("right"), how="inner")
