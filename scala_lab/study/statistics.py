"""Differences, factors and slopes with confidence intervals, from which every verdict is computed.

The unit of replication is the seed. Each seed gives one number: a contrast of its runs, such as ScaLA minus LAMB,
averaged over models and tasks, which are fixed. Runs of one seed at several batch sizes or on several tasks add no
units: they may share a baseline, and the claim is about their average anyway. Intervals are Student's t over seeds;
where each run's answers are kept, the choice of evaluation rows adds its own variance (see `contrast`). With fewer than
two seeds there is no interval, and nothing can be decided. Timings and simulations have units of their own, such as the
timed step: an estimate says what its n counts.
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

LEVEL = 0.95  # level of an interval unless told otherwise

MAX_N = 1000  # largest n that `Estimate.n_needed` counts up to

FACTOR = "x"  # the unit of factors: their mean, deviation and interval are taken on the log scale

CELL = ("model", "task")  # what is averaged over within a seed; columns that a frame lacks are left out

NORMAL_DF = 1e6  # degrees of freedom at which t stands for the normal distribution


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty; `low` and `high` are the ends of its interval at `level`."""

    value: float  # mean difference, geometric mean of factors, or slope; nan for none
    n: int = 0  # numbers behind it, one per unit of replication
    se: float = math.nan  # standard error, of the logarithm for factors; nan for none
    df: float = math.nan  # degrees of freedom of the t distribution that gives the interval
    sd: float = math.nan  # standard deviation over units, of the logarithm for factors
    se_rows: float = 0.0  # part of `se` that a larger n does not reduce: the choice of evaluation rows, or of methods
    rows: int = 0  # evaluation rows behind it; 0 for unknown
    unit: str = ""  # `points`, `x` for factors, or '' for a plain number
    level: float = LEVEL  # of the interval
    counts: str = "seeds"  # the units that n counts: seeds, timed steps, problems or replicas
    bound: float = math.inf  # largest magnitude there can be, where the interval is cut: 1 for a correlation
    note: str = ""  # what a reader must know about the interval
    numbers: tuple[float, ...] = field(default=(), compare=False, repr=False)  # one per unit, to be drawn as marks

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

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; nan where there is none, as tables show it."""
        return (self.low, self.high) if self.decided else (math.nan, math.nan)

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

    def p_below(self, threshold: float, *, strict: bool = True) -> float:
        """Return the one-sided p-value of the test that the true value is below a threshold, as `p_above` does."""
        return self.p_above(threshold, strict=strict, sign=-1)

    def p_above(self, threshold: float, *, strict: bool = True, sign: int = 1) -> float:
        """Return the one-sided p-value of the test that the true value is above a threshold; 1 without an interval.

        An estimate without any spread is compared as it is; `strict` says whether a value at the threshold is above.
        """
        from scipy.special import stdtr

        if not self.decided:
            return 1.0
        distance = sign * (self.position(self.value) - self.position(threshold))
        if self.se == 0:
            return 0.0 if distance > 0 or (distance == 0 and not strict) else 1.0
        return float(stdtr(self.df, -distance / self.se)) if math.isfinite(distance) else float(distance < 0)

    def detectable(self) -> float | None:
        """Return the smallest true effect that a two-sided test at this precision finds with a power of 80%.

        A factor is returned as one above 1. None without an interval, or if no effect there can be is large enough.
        """
        effect = self.natural(_noncentrality(self.df, self.level) * self.se) if self.decided else math.nan
        return effect if effect <= self.bound else None

    def n_needed(self, effect: float, power: float = 0.8) -> int | None:
        """Return the n that a two-sided test needs to find an effect, at the present standard deviations.

        `MAX_N` + 1 for more, or if no n can show it, because the evaluation rows are too few. None if the standard
        deviation is unknown.
        """
        if not self.decided:
            return None
        distance = abs(self.position(effect))

        def enough(n: int) -> bool:
            by_unit, by_row = self.sd**2 / n, self.se_rows**2
            se = math.sqrt(by_unit + by_row)
            if se == 0:
                return distance > 0
            return _power(_combined_df(n - 1, by_unit, by_row), distance / se, self.level) >= power

        if not enough(MAX_N):
            return MAX_N + 1
        few, many = 1, MAX_N  # too few, enough
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if enough(middle) else (middle, many)
        return many

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "no value"
        unit, sign = unit_text(self.unit), "+" if self.unit == "points" else ""
        if not self.decided:
            return f"{self.value:{sign}.3g}{unit} (n={self.counted(self.n)}, no interval)"
        return f"{self.value:{sign}.3g}{unit} [{self.low:{sign}.3g}, {self.high:{sign}.3g}] (n={self.counted(self.n)})"

    def counted(self, n: int) -> str:
        """Write a number of units: 1 seed, 8 timed steps."""
        return f"{n:,} {self.counts if n != 1 else self.counts.removesuffix('s')}"


def unit_text(unit: str) -> str:
    """Return what follows a number of this unit."""
    return unit if unit in (FACTOR, "") else f" {unit}"


def mean_interval(values: ArrayLike, unit: str = "", counts: str = "seeds") -> Estimate:
    """Return the mean of the finite values, one per unit, with Student's t interval; the geometric mean for factors.

    Example:
        >>> str(mean_interval([1.0, 2.0, 3.0], "points"))
        '+2 points [-0.484, +4.48] (n=3 seeds)'
    """
    numbers = _on_scale(np.asarray(values, dtype=float), unit)
    return _estimate(numbers[np.isfinite(numbers)], Estimate(math.nan, unit=unit, counts=counts))


def _on_scale(values: NDArray[np.float64], unit: str) -> NDArray[np.float64]:
    """Return the values, or the logarithms of factors; those of values that are not positive are not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values) if unit == FACTOR else values


def paired_difference(frame: pd.DataFrame, left: object, right: object, *, column: str = "method") -> Estimate:
    """Return the mean over seeds of left - right in score, each averaged over models and tasks; see `contrast`."""
    return contrast(frame, {left: 1.0, right: -1.0}, column=column)


def paired_ratio(frame: pd.DataFrame, left: object, right: object, *, value: str, column: str = "method") -> Estimate:
    """Return the geometric mean over seeds of left / right, also over models and tasks; both must be positive."""
    return contrast(frame, {left: 1.0, right: -1.0}, value=value, column=column, unit=FACTOR)


def slope_per_doubling(frame: pd.DataFrame) -> Estimate:
    """Return the slope of the least-squares line of the score over log2(batch_size): one per seed, then t over seeds.

    The slope of a gap to a baseline is minus that of the score: a baseline that all sizes share cancels, instead of
    being counted once per size.
    """
    sizes = sorted({float(size) for size in frame["batch_size"].dropna()})
    if len(sizes) < 2:
        return Estimate(math.nan, unit="points")
    centred = np.log2(sizes) - np.mean(np.log2(sizes))
    weights = dict(zip(sizes, (centred / np.sum(centred**2)).tolist(), strict=True))
    return contrast(frame, weights, column="batch_size")


def contrast(
    frame: pd.DataFrame,
    weights: Mapping[Any, float],
    *,
    value: str = "score",
    column: str = "method",
    unit: str = "points",
    counts: str = "seeds",
) -> Estimate:
    r"""Return a weighted sum of runs, such as the mean of two methods minus a third, with its interval over seeds.

    In each cell of a seed, a model and a task, the runs that `weights` names by their `column` are added up with these
    weights; the mean over cells is the seed's number. A seed that lacks a run in one of the cells is left out, and so
    is a cell that is complete in no seed: otherwise seeds would measure different things. For factors, logarithms are
    added up.

    Where runs have `correct`, their answers on the same rows of a task (1 for right), the rows are a sample too. For
    one task, the seed's contrast on a row is :math:`d_{sr} = \mu + a_s + b_r + e_{sr}`, a crossed random-effects model
    with S seeds and R rows, and the mean has the variance

    .. math:: \sigma_a^2 / S + \sigma_b^2 / R + \sigma_e^2 / (S R).

    The variance of the seeds' numbers over S estimates the first and third terms together, whatever the number of
    tasks. The second is :math:`(MS_{row} - MS_{residual}) / (S R)`, not below 0, added over tasks: subtracting the
    residual keeps the interaction from counting twice. With t over S - 1 degrees of freedom for the seeds and a normal
    distribution for the many rows, the squared half-widths are added. With few seeds, Welch and Satterthwaite's degrees
    of freedom give intervals that are too narrow (89% instead of 95% with two), and so does a bootstrap (80% with
    four; Owen, "The pigeonhole bootstrap", 2007).

    Raises:
        ValueError: Two runs share seed, cell and `column`, or answers of one task are of different rows.
    """
    values = _on_scale(frame[value].astype(float).to_numpy(), unit)
    terms, lost = _terms(frame, values, weights, column)
    numbers = np.array([sum(weight * values[run] for run, weight in seed_terms) for seed_terms in terms])
    variance, tied_variance, rows, note = _row_variance(frame, values, terms) if value == "score" else (0.0, 0.0, 0, "")
    about = Estimate(math.nan, rows=rows, unit=unit, counts=counts)
    notes = [f"{about.counted(lost)} left out, where a run is missing" if lost else "", note]
    return _estimate(numbers, replace(about, note="; ".join(filter(None, notes))), variance, tied_variance)


def cells_of(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the cell of every row: its values of `CELL`."""
    keys = [frame[name].tolist() for name in CELL if name in frame.columns]
    return list(zip(*keys, strict=True)) if keys else [()] * len(frame)


def _terms(
    frame: pd.DataFrame, values: NDArray[np.float64], weights: Mapping[Any, float], column: str
) -> tuple[list[list[tuple[int, float]]], int]:
    """Return the runs that make each seed's number, as rows of the frame with weights, and how many seeds lack one."""
    cells = cells_of(frame)
    index: dict[Any, dict[tuple[Any, Any], int]] = {}  # row of the frame by seed and (cell, side)
    for row, (cell, side, seed) in enumerate(zip(cells, frame[column].tolist(), frame["seed"].tolist(), strict=True)):
        if side not in weights or not math.isfinite(values[row]):
            continue
        if index.setdefault(seed, {}).setdefault((cell, side), row) != row:
            raise ValueError(f"two runs of seed {seed} share {column} {side!r} and {CELL} = {cell}")
    whole = {
        seed: {cell for cell, _ in runs if all((cell, side) in runs for side in weights)}
        for seed, runs in index.items()
    }
    kept = [cell for cell in dict.fromkeys(cells) if any(cell in found for found in whole.values())]
    seeds = sorted(seed for seed, found in whole.items() if kept and found.issuperset(kept))
    terms = [
        [(index[seed][cell, side], weight / len(kept)) for cell in kept for side, weight in weights.items()]
        for seed in seeds
    ]
    return terms, len(index) - len(seeds)


def _row_variance(
    frame: pd.DataFrame, values: NDArray[np.float64], terms: Sequence[Sequence[tuple[int, float]]]
) -> tuple[float, float, int, str]:
    """Return the variance by the choice of rows, that of one changed answer per run, the rows, and a note."""
    task_of = frame["task"].tolist() if "task" in frame.columns else [""] * len(frame)
    answers: list[Any] = frame["correct"].tolist() if "correct" in frame.columns else [None] * len(frame)
    counts = frame["rows"].tolist() if "rows" in frame.columns else [0] * len(frame)
    weights: dict[Any, list[tuple[int, int, float]]] = {}  # by task: seed's place, run's row in the frame, its weight
    for place, seed_terms in enumerate(terms):
        for run, weight in seed_terms:
            weights.setdefault(task_of[run], []).append((place, run, weight))

    variance, tied, total, not_means = 0.0, 0.0, 0, []
    for task, members in weights.items():
        used = [run for _, run, _ in members]
        if all(isinstance(answers[run], np.ndarray) for run in used):
            lengths = {len(answers[run]) for run in used}
            if len(lengths) > 1:
                raise ValueError(f"runs on {task} have answers on {sorted(lengths)} rows: they must share their rows")
            size = lengths.pop()
            if all(abs(100 * float(np.mean(answers[run])) - values[run]) < 1e-3 for run in used):
                table = np.zeros((len(terms), size))  # seeds x rows, in points
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
    numbers: NDArray[np.float64], about: Estimate, row_variance: float = 0.0, tied_variance: float = 0.0
) -> Estimate:
    """Complete an estimate from one number per unit (logarithms for factors) and the variance by the choice of rows.

    Units that all give the same number have no spread to go by. Accuracies are then given `tied_variance`, as if one
    answer of each run had differed; exact counts, such as forward passes, keep an interval of no width. A note says so.
    """
    count, note = len(numbers), about.note
    mean = float(numbers.mean()) if count else math.nan
    value, marks = about.natural(mean) if count else mean, tuple(about.natural(float(number)) for number in numbers)
    about = replace(about, value=value, n=count, numbers=marks)
    if count < 2:
        return about
    sd = float(numbers.std(ddof=1))
    if sd <= 1e-9 * max(1.0, abs(mean)):
        sd = 0.0
        row_variance += tied_variance
        width = "the interval is that of one changed answer per run" if tied_variance else "the interval has no width"
        note = "; ".join(filter(None, (note, f"all {about.counted(count)} give the same value: {width}")))
    by_unit = sd**2 / count
    df = _combined_df(count - 1, by_unit, row_variance) if sd else float(count - 1)
    se, se_rows = math.sqrt(by_unit + row_variance), math.sqrt(row_variance)
    return replace(about, se=se, df=df, sd=sd, se_rows=se_rows, note=note)


def _combined_df(seed_df: float, by_seed: float, by_row: float) -> float:
    """Return the degrees of freedom at which t's 95% interval has the half-widths of seeds (t) and rows (normal) added.

    Half-widths are added as squares: t(df)^2 (v_s + v_r) = t(seed_df)^2 v_s + z^2 v_r. These serve other levels too.
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
    """Return the probability that a two-sided t test of an interval's level rejects in the effect's direction."""
    from scipy.special import nctdtr

    critical = _t_quantile(df, (1 + level) / 2)
    if noncentrality > 10 * critical + 40:  # certain, and out of nctdtr's reach
        return 1.0
    return 1 - float(nctdtr(df, noncentrality, critical))


@lru_cache(maxsize=4096)
def _noncentrality(df: float, level: float) -> float:
    """Return the true effect in standard errors that a two-sided t test finds with a power of 80%."""
    from scipy.optimize import brentq

    upper = 2 * _t_quantile(df, (1 + level) / 2) + 10
    return float(brentq(lambda effect: _power(df, effect, level) - 0.8, 0.0, upper, xtol=1e-6))
