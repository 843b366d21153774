"""Differences, factors and slopes with confidence intervals, from which every verdict is computed.

The unit is the seed. Each seed gives one number: a contrast of its runs, such as ScaLA minus LAMB, averaged over models
and tasks, which are fixed. Runs of one seed at several batch sizes or on several tasks add no units: they may share a
baseline, and the claim is about their average anyway. Intervals are Student's t over seeds; where each run's answers
are kept, the choice of evaluation rows adds its own variance (see `contrast`). With fewer than two seeds there is no
interval, and nothing can be decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Level of an interval unless told otherwise."""

MAX_SEEDS = 1000
"""Most seeds that `Estimate.seeds_needed` counts up to."""

FACTOR = "x"
"""The unit of factors: their mean, deviation and interval are taken on the log scale."""

BY = ("model", "task")
"""What is averaged over within a seed; columns that a frame lacks are left out."""

NORMAL_DF = 1e6
"""Degrees of freedom at which t stands for the normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty; `low` and `high` are the ends of its interval at `level`."""

    value: float  # mean difference, geometric mean of factors, or slope; nan for none
    n: int = 0  # seeds behind it
    se: float = math.nan  # standard error, of the logarithm for factors; nan for none
    df: float = math.nan  # degrees of freedom of the t distribution that gives the interval
    sd: float = math.nan  # standard deviation over seeds, of the logarithm for factors
    se_rows: float = 0.0  # part of `se` that more seeds do not reduce: the choice of evaluation rows, or of methods
    rows: int = 0  # evaluation rows behind it; 0 for unknown
    unit: str = ""  # `points`, `x` for factors, or '' for a plain number
    level: float = LEVEL  # of the interval
    bound: float = math.inf  # largest magnitude there can be, where the interval is cut: 1 for a correlation
    note: str = ""  # what a reader must know about the interval
    numbers: tuple[float, ...] = field(default=(), compare=False, repr=False)  # one per seed, to be drawn as marks

    @property
    def decided(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.value) and math.isfinite(self.se)

    @property
    def low(self) -> float:
        """Lower end of the interval; -inf where there is none (0 for a factor)."""
        return self._end(-1)

    @property
    def high(self) -> float:
        """Upper end of the interval; inf where there is none."""
        return self._end(1)

    def _end(self, sign: int) -> float:
        if not self.decided:
            return self.natural(sign * math.inf)
        if self.se == 0:
            return self.value
        end = self.natural(self.position(self.value) + sign * _t_quantile(self.df, (1 + self.level) / 2) * self.se)
        return max(-self.bound, min(self.bound, end))

    def position(self, value: float) -> float:
        """Return where a value lies on the scale on which the interval is symmetric: its logarithm for a factor."""
        if self.unit != FACTOR:
            return value
        return math.log(value) if value > 0 else -math.inf

    def natural(self, position: float) -> float:
        """Return the value at a position, the inverse of `position`."""
        if self.unit != FACTOR:
            return position
        return math.exp(position) if position < 700 else math.inf

    def at(self, level: float) -> Estimate:
        """Return the same estimate with its interval at another level."""
        return replace(self, level=level)

    def p_above(self, threshold: float, *, strict: bool = True) -> float:
        """Return the one-sided p-value of the test that the true value is above a threshold; 1 without an interval.

        An estimate without any spread is compared as it is; `strict` says whether a value at the threshold is above.
        """
        return self._p(threshold, 1, strict)

    def p_below(self, threshold: float, *, strict: bool = True) -> float:
        """Return the one-sided p-value of the test that the true value is below a threshold, as `p_above` does."""
        return self._p(threshold, -1, strict)

    def _p(self, threshold: float, sign: int, strict: bool) -> float:
        from scipy.special import stdtr

        if not self.decided:
            return 1.0
        distance = sign * (self.position(self.value) - self.position(threshold))
        if self.se == 0:
            return 0.0 if distance > 0 or (distance == 0 and not strict) else 1.0
        return float(stdtr(self.df, -distance / self.se)) if math.isfinite(distance) else float(distance < 0)

    def detectable(self, power: float = 0.8, level: float = LEVEL) -> float | None:
        """Return the smallest true effect that a two-sided test at this precision finds with the given power.

        The power is that of the noncentral t distribution. A factor is returned as one above 1. None without an
        interval, or if no effect there can be is large enough.
        """
        if not self.decided:
            return None
        effect = self.natural(_noncentrality(self.df, power, level) * self.se)
        return effect if effect <= self.bound else None

    def seeds_needed(self, effect: float, power: float = 0.8, level: float = LEVEL) -> int | None:
        """Return how many seeds a two-sided test needs to find an effect, at the present standard deviations.

        More than `MAX_SEEDS` are returned as `MAX_SEEDS` + 1; so is an effect that no number of seeds can show, because
        the evaluation rows are too few. None if the standard deviation is unknown.
        """
        if not self.decided:
            return None
        distance = abs(self.position(effect))

        def enough(seeds: int) -> bool:
            by_seed, by_row = self.sd**2 / seeds, self.se_rows**2
            se = math.sqrt(by_seed + by_row)
            if se == 0:
                return distance > 0
            return _power(_combined_df(seeds - 1, by_seed, by_row), distance / se, level) >= power

        if not enough(MAX_SEEDS):
            return MAX_SEEDS + 1
        few, many = 1, MAX_SEEDS  # too few, enough
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if enough(middle) else (middle, many)
        return many

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "no value"
        unit, sign = unit_text(self.unit), "+" if self.unit == "points" else ""
        if not self.decided:
            return f"{self.value:{sign}.3g}{unit} (n={self.n}, no interval)"
        return f"{self.value:{sign}.3g}{unit} [{self.low:{sign}.3g}, {self.high:{sign}.3g}] (n={self.n})"


def unit_text(unit: str) -> str:
    """Return what follows a number of this unit."""
    return unit if unit in (FACTOR, "") else f" {unit}"


def mean_interval(values: ArrayLike, unit: str = "", level: float = LEVEL) -> Estimate:
    """Return the mean of the finite values, one per seed, with Student's t interval; the geometric mean for factors.

    Example:
        >>> str(mean_interval([1.0, 2.0, 3.0], "points"))
        '+2 points [-0.484, +4.48] (n=3)'
    """
    finite = np.asarray(values, dtype=float)
    if unit == FACTOR:
        with np.errstate(divide="ignore", invalid="ignore"):
            finite = np.log(finite)
    return _estimate(finite[np.isfinite(finite)], unit, level)


def paired_difference(
    frame: pd.DataFrame,
    left: object,
    right: object,
    *,
    value: str = "score",
    column: str = "method",
    by: Sequence[str] = BY,
    unit: str = "points",
    level: float = LEVEL,
) -> Estimate:
    """Return the mean over seeds of left - right, each averaged over the cells of `by`; see `contrast`."""
    return contrast(frame, {left: 1.0, right: -1.0}, value=value, column=column, by=by, unit=unit, level=level)


def paired_ratio(
    frame: pd.DataFrame,
    left: object,
    right: object,
    *,
    value: str,
    column: str = "method",
    by: Sequence[str] = BY,
    level: float = LEVEL,
) -> Estimate:
    """Return the geometric mean over seeds of left / right, also over the cells of `by`; both must be positive."""
    return contrast(frame, {left: 1.0, right: -1.0}, value=value, column=column, by=by, unit=FACTOR, level=level)


def slope_per_doubling(
    frame: pd.DataFrame,
    *,
    x: str = "batch_size",
    value: str = "score",
    by: Sequence[str] = BY,
    unit: str = "points",
    level: float = LEVEL,
) -> Estimate:
    """Return the slope of the least-squares line of a value over log2(x): one slope per seed, then t over seeds.

    The slope of a gap to a baseline is minus that of the score: a baseline that all sizes share cancels, instead of
    being counted once per size. The exponent of a power law is the slope of the logarithm: give log2 of the values.
    """
    sizes = sorted({float(size) for size in frame[x].dropna()})
    if len(sizes) < 2:
        return Estimate(math.nan, unit=unit, level=level)
    centred = np.log2(sizes) - np.mean(np.log2(sizes))
    weights = dict(zip(sizes, (centred / np.sum(centred**2)).tolist(), strict=True))
    return contrast(frame, weights, value=value, column=x, by=by, unit=unit, level=level)


def contrast(
    frame: pd.DataFrame,
    weights: Mapping[Any, float],
    *,
    value: str = "score",
    column: str = "method",
    by: Sequence[str] = BY,
    unit: str = "points",
    level: float = LEVEL,
) -> Estimate:
    r"""Return a weighted sum of runs, such as the mean of two methods minus a third, with its interval over seeds.

    A cell is a combination of the columns in `by`. In each cell of a seed, the runs that `weights` names by their
    `column` are added up with these weights; the mean over cells is the seed's number. A seed that lacks a run in one
    of the cells is left out, and so is a cell that is complete in no seed: otherwise seeds would measure different
    things. For factors, logarithms are added up.

    Where runs have `correct`, their answers on the same rows of a task (1 for right), the rows are a sample too. For
    one task, the seed's contrast on a row is :math:`d_{sr} = \mu + a_s + b_r + e_{sr}`, a crossed random-effects model
    with S seeds and R rows, and the mean has the variance

    .. math:: \sigma_a^2 / S + \sigma_b^2 / R + \sigma_e^2 / (S R).

    The variance of the seeds' numbers over S estimates the first and third terms together, whatever the number of
    tasks. The second is :math:`(MS_{row} - MS_{residual}) / (S R)`, not below 0, added over tasks: subtracting the
    residual keeps the interaction from counting twice. With t over S - 1 degrees of freedom for the seeds and a normal
    distribution for the many rows, the squared half-widths are added. Welch and Satterthwaite's degrees of freedom
    would be the usual choice; with few seeds their intervals are too narrow, because a small variance over seeds raises
    the degrees of freedom when it should not (89% instead of 95% with two seeds, 93.5% with four).

    A bootstrap would be worse: the spread of three to eight seeds resampled from themselves is too small by the factor
    sqrt((S - 1) / S), and percentiles do not widen as t does; four seeds give intervals of about 80%. With many seeds
    it agrees with the formula. (A bootstrap of both seeds and rows counts the interaction three times; Owen, "The
    pigeonhole bootstrap", 2007.)

    Raises:
        ValueError: Two runs share seed, cell and `column`, or answers of one task are of different rows.
    """
    runs = _Runs(frame, weights, value, column, by, unit)
    numbers = np.array([runs.number(seed) for seed in runs.seeds])
    variance, tied_variance, rows, rows_note = _row_variance(runs) if value == "score" else (0.0, 0.0, 0, "")
    note = "; ".join(text for text in (runs.note, rows_note) if text)
    return _estimate(numbers, unit, level, variance, tied_variance, rows, note)


@dataclass
class _Runs:
    """The runs that a contrast adds up, by seed and place: their cell and their value of `column`."""

    frame: pd.DataFrame
    weights: Mapping[Any, float]
    value: str
    column: str
    by: Sequence[str]
    unit: str
    seeds: list[Any] = field(default_factory=list)  # that have all runs
    cells: list[tuple[Any, ...]] = field(default_factory=list)
    note: str = ""

    def __post_init__(self) -> None:
        keys = [self.frame[name].tolist() for name in self.by if name in self.frame.columns]
        cells = list(zip(*keys, strict=True)) if keys else [()] * len(self.frame)
        values = self.frame[self.value].astype(float).to_numpy()
        if self.unit == FACTOR:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(values)
        self.values = values
        self.index: dict[Any, dict[tuple[Any, Any], int]] = {}  # row of the frame by seed and (cell, side)
        sides, seeds = self.frame[self.column].tolist(), self.frame["seed"].tolist()
        for row, (cell, side, seed) in enumerate(zip(cells, sides, seeds, strict=True)):
            if side not in self.weights or not math.isfinite(values[row]):
                continue
            if self.index.setdefault(seed, {}).setdefault((cell, side), row) != row:
                raise ValueError(
                    f"two runs of seed {seed} share {self.column} {side!r} and {tuple(self.by)} = {cell}: a column of "
                    "`by` that tells them apart is missing"
                )
        whole = {
            seed: {cell for cell, _ in runs if all((cell, side) in runs for side in self.weights)}
            for seed, runs in self.index.items()
        }
        self.cells = [cell for cell in dict.fromkeys(cells) if any(cell in found for found in whole.values())]
        self.seeds = sorted(seed for seed, found in whole.items() if found.issuperset(self.cells) and self.cells)
        partial = len(self.index) - len(self.seeds)
        if partial:
            self.note = f"{partial} seed{'s' * (partial != 1)} left out, where a run is missing"

    def of_seed(self, seed: Any) -> list[tuple[int, float]]:
        """Return the rows of the frame that make a seed's number, with their weights."""
        runs = self.index[seed]
        weights = self.weights.items()
        return [(runs[cell, side], weight / len(self.cells)) for cell in self.cells for side, weight in weights]

    def number(self, seed: Any) -> float:
        """Return the contrast of one seed."""
        return float(sum(weight * self.values[row] for row, weight in self.of_seed(seed)))


def _row_variance(runs: _Runs) -> tuple[float, float, int, str]:
    """Return the variance by the choice of rows, that of one changed answer per run, the rows, and a note."""
    frame = runs.frame
    task_of = frame["task"].tolist() if "task" in frame.columns else [""] * len(frame)
    answers: list[Any] = frame["correct"].tolist() if "correct" in frame.columns else [None] * len(frame)
    counts = frame["rows"].tolist() if "rows" in frame.columns else [0] * len(frame)
    weights: dict[Any, list[tuple[int, int, float]]] = {}  # by task: seed's place, run's row in the frame, its weight
    for place, seed in enumerate(runs.seeds):
        for run, weight in runs.of_seed(seed):
            weights.setdefault(task_of[run], []).append((place, run, weight))

    variance, tied, total, not_means = 0.0, 0.0, 0, []
    for task, members in weights.items():
        used = [run for _, run, _ in members]
        if all(isinstance(answers[run], np.ndarray) for run in used):
            lengths = {len(answers[run]) for run in used}
            if len(lengths) > 1:
                raise ValueError(f"runs on {task} have answers on {sorted(lengths)} rows: they must share their rows")
            size = lengths.pop()
            if all(abs(100 * float(np.mean(answers[run])) - runs.values[run]) < 1e-3 for run in used):
                table = np.zeros((len(runs.seeds), size))  # seeds x rows, in points
                for place, run, weight in members:
                    table[place] += answers[run] * np.float64(100 * weight)
                variance += _crossed_variance(table)
            else:
                not_means.append(str(task))
        else:
            size = int(min(counts[run] if counts[run] and counts[run] == counts[run] else 0 for run in used))
        total += size
        tied += sum((100 * weight / size) ** 2 for place, _, weight in members if place == 0) if size else 0.0
    note = f"rows of {', '.join(not_means)} are not sampled: the score is no mean over rows" if not_means else ""
    return variance, tied, total, note


def _crossed_variance(table: NDArray[np.float64]) -> float:
    """Return (MS_row - MS_residual) / (S R), not below 0, of a table of S seeds by R rows; centres the table."""
    seeds, rows = table.shape
    if seeds < 2 or rows < 2:
        return 0.0
    table -= table.mean()
    by_row, by_seed = table.mean(axis=0), table.mean(axis=1)
    of_rows, of_seeds = seeds * float(by_row @ by_row), rows * float(by_seed @ by_seed)
    residual = (float(np.vdot(table, table)) - of_rows - of_seeds) / ((seeds - 1) * (rows - 1))
    return max(0.0, (of_rows / (rows - 1) - residual) / (seeds * rows))


def _estimate(
    numbers: NDArray[np.float64],
    unit: str,
    level: float,
    row_variance: float = 0.0,
    tied_variance: float = 0.0,
    rows: int = 0,
    note: str = "",
) -> Estimate:
    """Return the estimate from one number per seed (logarithms for factors) and the variance by the choice of rows.

    Seeds that all give the same number have no spread to go by. Accuracies are then given `tied_variance`, as if one
    answer of each run had differed; exact counts, such as forward passes, keep an interval of no width. A note says so.
    """
    count = len(numbers)
    about = Estimate(math.nan, count, rows=rows, unit=unit, level=level, note=note)
    about = replace(about, numbers=tuple(about.natural(float(number)) for number in numbers))
    if not count:
        return about
    mean = float(numbers.mean())
    if count < 2:
        return replace(about, value=about.natural(mean))
    sd = float(numbers.std(ddof=1))
    if sd <= 1e-9 * max(1.0, abs(mean)):
        sd = 0.0
        row_variance += tied_variance
        width = "the interval is that of one changed answer per run" if tied_variance else "the interval has no width"
        note = "; ".join(text for text in (note, f"all {count} seeds give the same value: {width}") if text)
    by_seed = sd**2 / count
    df = _combined_df(count - 1, by_seed, row_variance) if sd else float(count - 1)
    return replace(
        about,
        value=about.natural(mean),
        se=math.sqrt(by_seed + row_variance),
        df=df,
        sd=sd,
        se_rows=math.sqrt(row_variance),
        note=note,
    )


def _combined_df(seed_df: float, by_seed: float, by_row: float) -> float:
    """Return the degrees of freedom at which t's 95% interval has the half-widths of seeds (t) and rows (normal) added.

    Half-widths are added as squares: t(df)^2 (v_s + v_r) = t(seed_df)^2 v_s + z^2 v_r.
    """
    from scipy.special import stdtridf

    if by_row <= 0 or by_seed <= 0:
        return seed_df if by_row <= 0 else NORMAL_DF
    t, z = _t_quantile(seed_df, (1 + LEVEL) / 2), _t_quantile(NORMAL_DF, (1 + LEVEL) / 2)
    combined = math.sqrt((t**2 * by_seed + z**2 * by_row) / (by_seed + by_row))
    return min(NORMAL_DF, float(stdtridf((1 + LEVEL) / 2, combined))) if combined > 1.0001 * z else NORMAL_DF


@lru_cache(maxsize=4096)
def _t_quantile(df: float, probability: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def _power(df: float, noncentrality: float, level: float) -> float:
    """Return the probability that a two-sided t test at a level rejects in the direction of the effect."""
    from scipy.special import nctdtr

    critical = _t_quantile(df, (1 + level) / 2)
    if noncentrality > 10 * critical + 40:  # certain, and out of nctdtr's reach
        return 1.0
    return 1 - float(nctdtr(df, noncentrality, critical))


@lru_cache(maxsize=4096)
def _noncentrality(df: float, power: float, level: float) -> float:
    """Return the true effect in standard errors that a two-sided t test finds with a given power."""
    from scipy.optimize import brentq

    upper = 2 * _t_quantile(df, (1 + level) / 2) + 10
    return float(brentq(lambda effect: _power(df, effect, level) - power, 0.0, upper, xtol=1e-6))
