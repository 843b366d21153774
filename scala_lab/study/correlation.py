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

from scala_lab.study.statistics import LEVEL, NORMAL_DF, Estimate

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
    level: float = LEVEL,
) -> Estimate:
    r"""Return Spearman's rank correlation of two columns, with its interval.

    Points are all runs; the means of methods; or, over seeds, runs ranked within their method, so that nothing counts
    in which methods differ. With `given`, the ranks of that column are first regressed out of both (partial
    correlation). Methods that `relatives` gives one name count as one, the mean of their runs with each seed. All runs
    are ranked before any mean is taken, so that a column and its logarithm give the same. A method that lacks a value
    with every seed is left out, then a seed that lacks one of a method.

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
    runs = frame[["method", "seed", *columns]].dropna()
    methods = runs["method"].nunique()
    seeds = [seed for seed, group in runs.groupby("seed") if len(group) == methods]
    ranked = runs.loc[runs["seed"].isin(seeds), columns].astype(float).rank()
    family = runs["method"].map(lambda method: (relatives or {}).get(method, method))
    by_seed = ranked.groupby([family, runs["seed"]]).mean().unstack()
    methods = len(by_seed)
    about = Estimate(
        math.nan, len(seeds), df=NORMAL_DF, level=level, bound=1.0, note=f"methods are sampled too: {methods} of them"
    )
    if methods < 2:
        return about
    ranks = _ranks([by_seed[name].to_numpy(float) for name in columns], over)
    if ranks is None:
        return about
    left, right = ranks
    about = replace(about, value=float(np.sum(left * right)))
    if len(seeds) - bool(given) < 2:
        return about
    means = [table.mean(axis=1, keepdims=True) for table in ranks]
    rests = [table - mean for table, mean in zip(ranks, means, strict=True)]
    of_methods = left.shape[1] ** 2 * _permutation_variance(means, bool(given)) if over != "seeds" else 0.0
    of_seeds = _permutation_variance([rest.T for rest in rests], bool(given)) if over != "methods" else 0.0
    return replace(
        about,
        se=math.sqrt(of_methods + of_seeds),
        sd=math.sqrt(len(seeds) * of_seeds),
        se_rows=math.sqrt(of_methods),
    )


def _ranks(tables: Sequence[NDArray[np.float64]], over: Over) -> list[NDArray[np.float64]] | None:
    """Return the ranks of x and y, methods by seeds, centred, without what a third table explains, and of length 1.

    None if one of them has no rank to tell apart.
    """
    from scipy.stats import rankdata

    centred = []
    for table in tables:
        points = table.mean(axis=1, keepdims=True) if over == "methods" else table
        ranks = rankdata(points, axis=1 if over == "seeds" else None).reshape(points.shape)
        centred.append(ranks - ranks.mean(axis=1 if over == "seeds" else None, keepdims=True))
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
