"""Intervals against scipy and by hand, pairing, and the choice of rates."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scala_lab.study.statistics import (
    Estimate,
    mean_interval,
    paired_columns,
    paired_difference,
    paired_ratio,
    slope_interval,
)
from scala_lab.study.tables import best_runs

LEFT = np.array([84.2, 90.1, 91.7, 93.4, 85.0])
RIGHT = np.array([83.9, 89.0, 91.9, 92.6, 84.1])


def test_mean_interval_is_that_of_scipy():
    found = mean_interval(LEFT)
    low, high = stats.t.interval(0.95, len(LEFT) - 1, LEFT.mean(), stats.sem(LEFT))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert found.value == pytest.approx(LEFT.mean())
    assert found.n == 5


def test_paired_difference_is_decided_as_the_paired_t_test_decides():
    found = paired_difference(LEFT, RIGHT)
    test = stats.ttest_rel(LEFT, RIGHT)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert (found.low > 0) == (test.pvalue < 0.05)
    assert found.effect_size == pytest.approx(test.statistic / math.sqrt(5), rel=1e-10)


def test_paired_ratio_by_hand():
    # log ratios 0 and log 4: mean log 2; deviation log 4 / sqrt 2; t(0.975, 1) = 12.706
    found = paired_ratio([1.0, 4.0], [1.0, 1.0])
    assert found.value == pytest.approx(2.0)
    assert math.log(found.high / 2) == pytest.approx(12.7062 * math.log(4) / 2, rel=1e-5)
    assert found.low * found.high == pytest.approx(4.0)
    assert found.unit == "x"


def test_slope_interval_is_that_of_a_regression_with_a_known_answer():
    # Anscombe's first set: y = 3.0001 + 0.5001 x, standard error of the slope 0.1179, 9 degrees of freedom
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    found = slope_interval(x, y)
    assert found.value == pytest.approx(0.5001, abs=1e-4)
    assert found.high - found.value == pytest.approx(0.1179 * stats.t.ppf(0.975, 9), rel=1e-3)


@pytest.mark.parametrize(
    ("values", "n"), [([], 0), ([math.nan], 0), ([80.0], 1), ([80.0, math.nan], 1), ([math.inf, 80.0], 1)]
)
def test_fewer_than_two_finite_values_decide_nothing(values, n):
    found = mean_interval(values)
    assert found.n == n
    assert not found.decided
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_two_points_have_a_slope_but_no_interval():
    found = slope_interval([0.0, 1.0], [1.0, 3.0])
    assert found.value == pytest.approx(2.0)
    assert not found.decided
    assert math.isnan(slope_interval([1.0, 1.0], [1.0, 2.0]).value)


def test_pairs_with_a_missing_side_are_left_out():
    assert paired_difference([1.0, math.nan, 3.0], [0.0, 1.0, 1.0]).n == 2


def test_a_factor_of_nothing_is_left_out():
    assert paired_ratio([1.0, 2.0, 0.0], [1.0, 1.0, 1.0]).n == 2


def test_equal_differences_leave_no_width():
    found = paired_difference([2.0, 3.0], [1.0, 2.0])
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)
    assert math.isnan(found.effect_size)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.8, 0.5, 1.1, 12, unit="points"), "+0.8 points [+0.5, +1.1] (n=12)"),
        (Estimate(2.5, 2.0, 3.0, 8, unit="x"), "2.5x [2, 3] (n=8)"),
        (Estimate(0.5, -math.inf, math.inf, 1), "0.5 (n=1, no interval)"),
        (Estimate(math.nan, -math.inf, math.inf, 0), "no value"),
    ],
)
def test_estimates_read_as_a_person_would_write_them(estimate, text):
    assert str(estimate) == text


def runs(**columns):
    return pd.DataFrame(columns)


def test_paired_columns_join_on_everything_else():
    frame = runs(
        task=["a", "a", "b", "b", "c"],
        seed=[0, 0, 0, 0, 0],
        method=["x", "y", "y", "x", "x"],
        score=[1.0, 2.0, 3.0, 4.0, 5.0],
    )
    sides = paired_columns(frame, "score", "method", "x", "y")
    assert sides.loc[("a", 0)].tolist() == [1.0, 2.0]
    assert sides.loc[("b", 0)].tolist() == [4.0, 3.0]
    assert len(sides) == 2


def test_paired_columns_refuse_what_they_cannot_tell_apart():
    frame = runs(task=["a", "a", "a"], method=["x", "x", "y"], score=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="a column that tells them apart is missing"):
        paired_columns(frame, "score", "method", "x", "y")


def test_best_runs_are_at_the_rate_with_the_best_mean_and_say_when_it_ends_the_grid():
    frame = runs(
        method=["x"] * 6 + ["y"] * 6,
        rate=[0.1, 0.1, 0.2, 0.2, 0.3, 0.3] * 2,
        seed=[0, 1] * 6,
        score=[1, 1, 5, 2, 9, math.nan, 1, 1, 2, 2, 3, 3],
    )
    best = best_runs(frame, ["method"])
    assert best[best["method"] == "x"]["rate"].unique().tolist() == [0.2], "a rate with a diverged seed is no best rate"
    assert best[best["method"] == "x"]["score"].tolist() == [5, 2]
    assert best.groupby("method")["edge"].first().to_dict() == {"x": False, "y": True}
    assert set(best["grid_points"]) == {3}


def test_best_runs_leave_out_a_method_that_never_finished_and_know_no_edge_of_one_rate():
    frame = runs(method=["x", "y"], rate=[0.1, 0.1], seed=[0, 0], score=[math.nan, 1.0])
    best = best_runs(frame, ["method"])
    assert best["method"].tolist() == ["y"]
    assert not best["edge"].any()
    assert best_runs(frame[frame["method"] == "x"], ["method"]).empty
