"""Rank correlations between columns of runs, with intervals that take methods and seeds, not runs, as what was sampled.

Runs of one method are alike, so that 44 runs of 11 methods are no 44 points: an interval that takes them as such misses
a correlation of 0 in three of ten studies of unrelated columns. Seeds as the unit will not do either, since they say
how well the order of these methods is known, and not what other methods would show: Student's t over the seeds'
correlations misses it in four of ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from scala_lab.study.statistics import NORMAL_DF, Estimate

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Over = Literal["runs", "methods", "seeds"]


def rank_correlation(
    frame: pd.DataFrame,
    x: str,
    y: str = "score",
    *,
    over: Over = "runs",
    given: str = "",
    relatives: Mapping[str, str] | None = None,
) -> Estimate:
    r"""Return Spearman's rank correlation of two columns, with its interval.

    Points are all runs; the means of methods; or, over seeds, runs ranked within their method, so that nothing counts
    in which methods differ. With `given`, the ranks of that column are first regressed out of both (partial
    correlation). Methods that `relatives` gives one name count as one, the mean of their runs with each seed. All runs
    are ranked before any mean is taken, so that a column and its logarithm give the same. Where runs lack a value, some
    methods are left out, those that lack most first, and the seeds that any other method lacks, so that for what is
    left 1 / (M - 1) + 1 / (M (S - 1)) is smallest (see below).

    The interval is :math:`r \pm z\, (v_m + v_s)^{1/2}`, cut at -1 and 1, by the variances that r has if x and y have
    nothing to do with one another: over permutations of the methods of x, and of its seeds, for all methods at once. In
    a table of M methods by S seeds, :math:`r = \sum x_{ms} y_{ms}` of scaled ranks is a sum over methods of products of
    their means, plus one over seeds of products of what is left. Such a sum of n terms
    :math:`\langle x_u, y_u \rangle` has, over permutations, the variance

    .. math:: \sum_{u, w} \langle x_u, y_w \rangle^2 / (n - 1).

    For means of methods that is 1 / (M - 1), whatever the seeds are. Over seeds it is 1 / (S - 1) where a seed moves
    all methods alike, and as little as 1 / (M (S - 1)) where each goes its own way. The tails of r are shorter than
    those of the normal distribution, so that the interval is honest with few seeds too: in simulated studies of
    unrelated columns, of 7 or 11 methods that differ or do not and of 3 to 8 seeds that move them alike or do not, 95%
    intervals covered 0 in 95.1 to 100% of cases, 99.5% intervals in 99.6 to 100%. Relatives that are all but copies
    would break it: with 11 methods, five of them alike and two others, the 95% intervals over methods covered 0 in 80%.
    """
    columns = [x, y, given] if given else [x, y]
    methods, rows = np.unique(frame["method"].to_numpy(str), return_inverse=True)
    seeds, places = np.unique(frame["seed"].to_numpy(), return_inverse=True)
    tables = np.full((len(columns), len(methods), len(seeds)), math.nan)
    tables[:, rows, places] = frame[columns].to_numpy(float).T
    whole_methods, whole_seeds = _without_gaps(np.isfinite(tables).all(axis=0))
    tables = tables[:, whole_methods][:, :, whole_seeds]
    families = [(relatives or {}).get(method, method) for method in methods[whole_methods].tolist()]
    tables = _family_means(_ranked(tables), families)
    count, seed_count = tables.shape[1:]
    note = f"methods are sampled too: {count} of them"
    about = Estimate(math.nan, seed_count, df=NORMAL_DF, bound=1.0, note=note)
    ranks = _scaled_ranks(tables, over) if count > 1 and seed_count > 0 else None
    if ranks is None:
        return about
    about = replace(about, value=float(np.sum(ranks[0] * ranks[1])))
    if seed_count - bool(given) < 2:
        return about
    means = [table.mean(axis=1, keepdims=True) for table in ranks]
    rests = [(table - mean).T for table, mean in zip(ranks, means, strict=True)]
    points = ranks[0].shape[1]
    of_methods = points**2 * _permutation_variance(means, bool(given)) if over != "seeds" else 0.0
    of_seeds = _permutation_variance(rests, bool(given)) if over != "methods" else 0.0
    se, sd = math.sqrt(of_methods + of_seeds), math.sqrt(seed_count * of_seeds)
    return replace(about, se=se, sd=sd, se_rows=math.sqrt(of_methods))


def _without_gaps(present: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which methods and seeds of a table to keep, methods by seeds, so that no run of them is missing."""
    order, least = np.argsort(present.sum(axis=1), kind="stable"), math.inf
    kept = np.ones(len(order), dtype=bool), np.array(present.all(axis=0))
    for lost in range(len(order) - 1):
        methods = np.isin(np.arange(len(order)), order[lost:])
        seeds = np.array(present[methods].all(axis=0))
        count, others = int(methods.sum()), int(seeds.sum()) - 1
        variance = 1 / (count - 1) + 1 / (count * others) if others > 0 else math.inf
        if variance < least:
            least, kept = variance, (methods, seeds)
    return kept


def _ranked(tables: NDArray[np.float64], axis: int | None = None) -> NDArray[np.float64]:
    """Return each table's ranks, over all of it or along an axis."""
    from scipy.stats import rankdata

    return np.array([rankdata(table, axis=axis).reshape(table.shape) for table in tables])


def _family_means(tables: NDArray[np.float64], families: Sequence[str]) -> NDArray[np.float64]:
    """Return the tables with one row for each family of methods."""
    names, places = np.unique(families, return_inverse=True)
    shares = places == np.arange(len(names))[:, None]
    return (shares / shares.sum(axis=1, keepdims=True)) @ tables


def _scaled_ranks(tables: NDArray[np.float64], over: Over) -> list[NDArray[np.float64]] | None:
    """Return the ranks of x and y, methods by seeds, centred, without what a third table explains, and of length 1.

    None if one of them has no rank to tell apart.
    """
    axis = 1 if over == "seeds" else None
    points = tables.mean(axis=2, keepdims=True) if over == "methods" else tables
    centred = [table - table.mean(axis=axis, keepdims=True) for table in _ranked(points, axis)]
    *pair, other = centred if len(centred) > 2 else [*centred, np.zeros_like(centred[0])]
    scaled = []
    for ranks in pair:
        rest = ranks - other * (np.sum(ranks * other) / (np.sum(other**2) or 1.0))
        length = float(np.linalg.norm(rest))
        if length <= 1e-9 * ranks.size:
            return None
        scaled.append(rest / length)
    return scaled


def _permutation_variance(pair: Sequence[NDArray[np.float64]], covariates: int) -> float:
    """Return the variance of sum_u <x_u, y_p(u)> over permutations p of the rows u of y; rows sum to 0."""
    x, y = pair
    free = len(x) - 1 - covariates
    return float(np.sum((x @ y.T) ** 2)) / free if free > 0 else math.nan
