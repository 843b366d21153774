"""Intervals against scipy and by hand, and pairing."""

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

LEFT = np.array([84.2, 90.1, 91.7, 93.4, 85.0])
RIGHT = np.array([83.9, 89.0, 91.9, 92.6, 84.1])


def test_mean_interval_is_that_of_scipy():
    estimate = mean_interval(LEFT)
    low, high = stats.t.interval(0.95, len(LEFT) - 1, LEFT.mean(), stats.sem(LEFT))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-12)
    assert estimate.value == pytest.approx(LEFT.mean())
    assert estimate.n == 5


def test_paired_difference_is_decided_as_the_paired_t_test_decides():
    estimate = paired_difference(LEFT, RIGHT)
    test = stats.ttest_rel(LEFT, RIGHT)
    interval = test.confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    assert (estimate.low > 0) == (test.pvalue < 0.05)
    assert estimate.effect_size == pytest.approx(test.statistic / math.sqrt(5), rel=1e-10)


def test_paired_ratio_by_hand():
    # log ratios 0 and log 4: mean log 2; deviation log 4 / sqrt 2; t(0.975, 1) = 12.706
    estimate = paired_ratio([1.0, 4.0], [1.0, 1.0])
    assert estimate.value == pytest.approx(2.0)
    assert math.log(estimate.high / 2) == pytest.approx(12.7062 * math.log(4) / 2, rel=1e-5)
    assert estimate.low * estimate.high == pytest.approx(4.0)
    assert estimate.unit == "x"


def test_slope_interval_is_that_of_a_regression_with_a_known_answer():
    # Anscombe's first set: y = 3.0001 + 0.5001 x, standard error of the slope 0.1179, 9 degrees of freedom
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    estimate = slope_interval(x, y)
    assert estimate.value == pytest.approx(0.5001, abs=1e-4)
    assert estimate.high - estimate.value == pytest.approx(0.1179 * stats.t.ppf(0.975, 9), rel=1e-3)


@pytest.mark.parametrize(
    ("values", "n"), [([], 0), ([math.nan], 0), ([80.0], 1), ([80.0, math.nan], 1), ([math.inf, 80.0], 1)]
)
def test_fewer_than_two_finite_values_decide_nothing(values, n):
    estimate = mean_interval(values)
    assert estimate.n == n
    assert not estimate.decided
    assert (estimate.low, estimate.high) == (-math.inf, math.inf)


def test_two_points_have_a_slope_but_no_interval():
    estimate = slope_interval([0.0, 1.0], [1.0, 3.0])
    assert estimate.value == pytest.approx(2.0)
    assert not estimate.decided
    assert math.isnan(slope_interval([1.0, 1.0], [1.0, 2.0]).value)


def test_pairs_with_a_missing_side_are_left_out():
    assert paired_difference([1.0, math.nan, 3.0], [0.0, 1.0, 1.0]).n == 2


def test_a_factor_of_nothing_is_left_out():
    assert paired_ratio([1.0, 2.0, 0.0], [1.0, 1.0, 1.0]).n == 2


def test_equal_differences_leave_no_width():
    estimate = paired_difference([2.0, 3.0], [1.0, 2.0])
    assert (estimate.low, estimate.value, estimate.high) == (1.0, 1.0, 1.0)
    assert math.isnan(estimate.effect_size)


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
