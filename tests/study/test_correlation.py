"""Rank correlations against scipy and by permuting, and how often their intervals miss a correlation of 0."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scala_lab.study.correlation import rank_correlation


def runs(x, y, **columns):
    """A frame from tables of methods by seeds."""
    methods, seeds = np.indices(np.shape(x))
    tables = {"x": x, "score": y, **columns}
    return pd.DataFrame({"method": methods.ravel().astype(str), "seed": seeds.ravel()}).assign(
        **{name: np.ravel(table) for name, table in tables.items()}
    )


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    return rng.normal(size=(7, 4)), rng.normal(size=(7, 4)), rng.normal(size=(7, 4))


def test_values_are_those_of_scipy(tables):
    x, y, _ = tables
    frame = runs(x, y)
    assert rank_correlation(frame, "x").value == pytest.approx(stats.spearmanr(x.ravel(), y.ravel()).statistic)
    means = stats.spearmanr(*(stats.rankdata(table).reshape(7, 4).mean(1) for table in (x, y))).statistic
    assert rank_correlation(frame, "x", over="methods").value == pytest.approx(means)
    by_method = [stats.spearmanr(*pair).statistic for pair in zip(x, y, strict=True)]
    assert rank_correlation(frame, "x", over="seeds").value == pytest.approx(np.mean(by_method))


def test_partial_correlation_is_that_of_the_formula(tables):
    x, y, z = tables
    xy, xz, yz = (stats.spearmanr(a.ravel(), b.ravel()).statistic for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert rank_correlation(runs(x, y, z=z), "x", given="z").value == pytest.approx(expected)


def test_what_a_third_column_explains_is_no_correlation_of_its_own(tables):
    x, _, z = tables
    assert rank_correlation(runs(z + 0.1 * x, z, z=z), "x").value > 0.9
    assert math.isnan(rank_correlation(runs(z + 0.1 * x, z, z=z), "x", given="z").value)


def test_variance_over_methods_is_that_of_permuting_them(tables):
    x, y, _ = tables
    ranks = np.arange(7), np.arange(7)  # no two means are alike
    orders = np.array(list(permutations(range(7))))
    values = [np.corrcoef(ranks[0], ranks[1][order])[0, 1] for order in orders]
    found = rank_correlation(runs(x, y), "x", over="methods")
    assert found.se == pytest.approx(np.std(values))
    assert found.se == pytest.approx(1 / math.sqrt(6))
    assert found.sd == 0, "more seeds do not help"


@pytest.mark.parametrize("alike", [False, True])
def test_variance_over_seeds_is_that_of_permuting_the_seeds_of_all_methods_at_once(tables, alike):
    x, y, _ = tables
    x, y = (np.tile(x[:1], (7, 1)), np.tile(y[:1], (7, 1))) if alike else (x, y)
    values = [rank_correlation(runs(x, y[:, list(order)]), "x", over="seeds").value for order in permutations(range(4))]
    found = rank_correlation(runs(x, y), "x", over="seeds")
    assert found.se == pytest.approx(np.std(values))
    if alike:  # seven methods that move as one are one
        assert found.se == pytest.approx(1 / math.sqrt(3))


def test_variance_over_runs_is_that_of_permuting_both(tables):
    x, y, _ = tables
    found = rank_correlation(runs(x, y), "x")
    rng = np.random.default_rng(1)
    left, right = (stats.rankdata(table).reshape(7, 4) for table in (x, y))
    means = [part.mean(1, keepdims=True) for part in (left, right)]
    rests = [table - mean for table, mean in zip((left, right), means, strict=True)]
    length = np.std(left) * np.std(right) * left.size
    values = [
        np.sum((means[0] - left.mean()) * means[1][rng.permutation(7)]) * 4
        + np.sum(rests[0] * rests[1][:, rng.permutation(4)])
        for _ in range(20_000)
    ]
    assert found.se == pytest.approx(np.std(values) / length, rel=0.03)


def test_a_perfect_relation_is_minus_one_and_clear_of_zero():
    levels = np.arange(11.0)[:, None] + np.zeros((1, 4))
    found = rank_correlation(runs(levels, -levels), "x")
    assert found.value == pytest.approx(-1)
    assert found.low == -1
    assert found.high < -0.3


def test_interval_ends_where_correlations_end_and_no_effect_beyond_is_promised(tables):
    x, y, _ = tables
    found = rank_correlation(runs(x[:3], y[:3]), "x", over="methods").at(0.995)
    assert (found.low, found.high) == (-1, 1)
    assert found.detectable() is None


def test_methods_and_seeds_with_gaps_are_left_out(tables):
    x, y, _ = tables

    def without(methods, seeds):
        return rank_correlation(runs(*(np.delete(np.delete(table, methods, 0), seeds, 1) for table in (x, y))), "x")

    gaps = x.copy()
    gaps[2] = np.nan  # a method without any value
    gaps[4, 1] = np.nan  # a run that failed: five methods by four seeds say less than six by three
    found = rank_correlation(runs(gaps, y).sample(frac=1, random_state=0), "x")
    assert found == without([2], [1])
    assert (found.n, found.note) == (3, "methods are sampled too: 6 of them")
    gaps[4, 2:] = np.nan  # now one seed would be left, or all but this method
    assert rank_correlation(runs(gaps, y), "x") == without([2, 4], [])
    # a row that is not there is one without a value
    assert rank_correlation(runs(gaps, y).dropna(), "x") == without([2, 4], [])


@pytest.mark.parametrize("over", ["runs", "methods", "seeds"])
def test_too_little_gives_no_interval(tables, over):
    x, y, z = tables
    assert not rank_correlation(runs(x[:, :1], y[:, :1]), "x", over=over).decided
    assert not rank_correlation(runs(x[:, :2], y[:, :2], z=z[:, :2]), "x", over=over, given="z").decided
    assert math.isnan(rank_correlation(runs(np.ones((5, 3)), y[:5, :3]), "x", over=over).value)
    assert math.isnan(rank_correlation(runs(x, y).iloc[:0], "x", over=over).value)


def test_relatives_count_as_one_method(tables):
    x, y, _ = tables
    frame = runs(np.vstack([x, x[:1], x[:1]]), np.vstack([y, y[:1], y[:1]]))
    found = rank_correlation(frame, "x", relatives={"7": "0", "8": "0"})
    assert found == rank_correlation(runs(x, y), "x")
    assert found.note == "methods are sampled too: 7 of them"


@pytest.mark.parametrize("over", ["runs", "methods", "seeds"])
def test_scales_do_not_matter(tables, over):
    x, y, _ = tables
    found = [rank_correlation(runs(left, y), "x", over=over, relatives={"6": "0"}) for left in (x, np.exp(3 * x))]
    assert found[0] == found[1]


@pytest.mark.parametrize("over", ["runs", "methods", "seeds"])
@pytest.mark.parametrize(("own", "shared"), [(0, 0), (2, 1)])
def test_unrelated_columns_are_rarely_called_related(over, own, shared):
    """Methods deviate by `own`, seeds by `shared` with all methods, single runs by 1."""
    rng, studies = np.random.default_rng(0), 200

    def table():
        return own * rng.normal(size=(7, 1)) + shared * rng.normal(size=(1, 4)) + rng.normal(size=(7, 4))

    found = [rank_correlation(runs(table(), table()), "x", over=over) for _ in range(studies)]
    missed = np.mean([estimate.low > 0 or estimate.high < 0 for estimate in found])
    assert missed <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)
