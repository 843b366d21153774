"""Intervals against scipy, by hand and by simulation: seeds are the unit, and rows are sampled too."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scala_lab.study.statistics import (
    MAX_N,
    Estimate,
    contrast,
    mean_interval,
    paired_difference,
    paired_ratio,
    slope_per_doubling,
)

LEFT = np.array([84.2, 90.1, 91.7, 93.4, 85.0])
RIGHT = np.array([83.9, 89.0, 91.9, 92.6, 84.1])


def runs(scores, column="method", **columns):
    """A frame from scores by (side, seed) or (side, seed, task)."""
    keys = list(scores)
    frame = pd.DataFrame(
        {
            column: [key[0] for key in keys],
            "seed": [key[1] for key in keys],
            "task": [key[2] if len(key) > 2 else "a" for key in keys],
            "score": list(scores.values()),
        }
    )
    return frame.assign(**columns)


def two_sides(left, right, **columns):
    scores = {("x", seed): score for seed, score in enumerate(left)}
    return runs(scores | {("y", seed): score for seed, score in enumerate(right)}, **columns)


def test_mean_interval_is_that_of_scipy():
    estimate = mean_interval(LEFT)
    low, high = stats.t.interval(0.95, len(LEFT) - 1, LEFT.mean(), stats.sem(LEFT))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-12)
    assert estimate.value == pytest.approx(LEFT.mean())
    assert estimate.n == 5


def test_paired_difference_is_the_paired_t_test():
    estimate = paired_difference(two_sides(LEFT, RIGHT), "x", "y")
    test = stats.ttest_rel(LEFT, RIGHT)
    for level in (0.95, 0.995):
        interval = test.confidence_interval(level)
        assert (estimate.at(level).low, estimate.at(level).high) == pytest.approx((interval.low, interval.high))
    assert estimate.p_above(0) == pytest.approx(stats.ttest_rel(LEFT, RIGHT, alternative="greater").pvalue)
    assert estimate.p_below(0) == pytest.approx(1 - estimate.p_above(0))
    assert estimate.p_above(0.4) == pytest.approx(stats.ttest_1samp(LEFT - RIGHT, 0.4, alternative="greater").pvalue)
    assert estimate.sd == pytest.approx(np.std(LEFT - RIGHT, ddof=1))


def test_paired_ratio_by_hand():
    # log ratios 0 and log 4: mean log 2; deviation log 4 / sqrt 2; t(0.975, 1) = 12.706
    estimate = paired_ratio(two_sides([1.0, 4.0], [1.0, 1.0]), "x", "y", value="score")
    assert estimate.value == pytest.approx(2.0)
    assert math.log(estimate.high / 2) == pytest.approx(12.7062 * math.log(4) / 2, rel=1e-5)
    assert estimate.low * estimate.high == pytest.approx(4.0)
    assert estimate.p_above(2.0) == pytest.approx(0.5)
    assert estimate.p_above(0.0) == 0.0
    assert estimate.unit == "x"


def test_tasks_add_no_units():
    differences = {0: {"a": 1.0, "b": 3.0}, 1: {"a": 2.0, "b": 2.0}, 2: {"a": 0.0, "b": 10.0}}
    scores = {("y", seed, task): 50.0 for seed in differences for task in "ab"}
    scores |= {
        ("x", seed, task): 50 + value for seed, by_task in differences.items() for task, value in by_task.items()
    }
    estimate = paired_difference(runs(scores), "x", "y")
    expected = mean_interval([2.0, 2.0, 5.0])
    assert (estimate.value, estimate.low, estimate.n) == pytest.approx((expected.value, expected.low, 3))


def test_a_shared_baseline_counts_once_in_a_slope():
    # two seeds at five sizes are two slopes, not ten points
    sizes = (32, 64, 128, 256, 512)
    slopes = {0: -0.5, 1: 0.3}
    scores = {(size, seed): 90 + slope * math.log2(size) for seed, slope in slopes.items() for size in sizes}
    estimate = slope_per_doubling(runs(scores, column="batch_size"))
    assert estimate.n == 2
    assert estimate.value == pytest.approx(-0.1)
    assert estimate.high - estimate.value == pytest.approx(12.7062 * 0.8 / 2, rel=1e-5)


def test_a_slope_is_that_of_a_regression():
    rng = np.random.default_rng(0)
    sizes = np.array([32, 512, 1024, 8192])
    points = rng.normal(size=(3, 4))
    scores = {(size, seed): points[seed, place] for seed in range(3) for place, size in enumerate(sizes.tolist())}
    expected = [stats.linregress(np.log2(sizes), points[seed]).slope for seed in range(3)]
    assert slope_per_doubling(runs(scores, column="batch_size")).value == pytest.approx(np.mean(expected))
    assert math.isnan(slope_per_doubling(runs({(32, 0): 1.0}, column="batch_size")).value)


def test_a_contrast_weighs_several_arms():
    scores = {(delay, seed): 80 + 10 * seed + delay**2 for delay in range(4) for seed in range(2)}
    middle = contrast(runs(scores, column="delay"), {1: 0.5, 2: 0.5, 0: -1.0}, column="delay")
    assert middle.value == pytest.approx(2.5)


@pytest.mark.parametrize("lost", [{}, {"score": math.nan}])
def test_a_seed_without_all_runs_is_left_out_and_told(lost):
    scores = {(side, seed, task): float(seed) for side in "xy" for seed in range(3) for task in "ab"}
    frame = runs(scores)
    gone = (frame["seed"] == 2) & (frame["task"] == "b") & (frame["method"] == "x")
    frame = frame.assign(score=frame["score"].mask(gone)) if lost else frame[~gone]
    estimate = paired_difference(frame, "x", "y")
    assert estimate.n == 2
    assert "1 seed left out" in estimate.note


def test_a_task_that_one_side_never_ran_is_left_out():
    frame = runs({("x", 0): 2.0, ("y", 0): 1.0, ("x", 1): 3.0, ("y", 1): 1.0, ("x", 0, "b"): 9.0, ("x", 1, "b"): 9.0})
    assert paired_difference(frame, "x", "y").value == pytest.approx(1.5)


def test_runs_that_cannot_be_told_apart_are_refused():
    frame = pd.concat([two_sides([1.0, 2.0], [0.0, 0.0])] * 2)
    with pytest.raises(ValueError, match="two runs of seed 0 share method 'x'"):
        paired_difference(frame, "x", "y")


def test_answers_on_different_rows_are_refused():
    frame = two_sides([100.0, 100.0], [100.0, 100.0])
    frame["correct"] = [np.ones(5), np.ones(5), np.ones(6), np.ones(6)]
    with pytest.raises(ValueError, match="must share their rows"):
        paired_difference(frame, "x", "y")


@pytest.mark.parametrize(
    ("values", "n"), [([], 0), ([math.nan], 0), ([80.0], 1), ([80.0, math.nan], 1), ([math.inf, 80.0], 1)]
)
def test_fewer_than_two_seeds_decide_nothing(values, n):
    estimate = mean_interval(values)
    assert estimate.n == n
    assert not estimate.decided
    assert (estimate.low, estimate.high) == (-math.inf, math.inf)
    assert (estimate.p_above(0), estimate.p_below(100)) == (1.0, 1.0)
    assert estimate.detectable() is estimate.n_needed(1.0) is None


def test_factors_that_are_not_positive_are_left_out():
    assert mean_interval([2.0, 0.0, 8.0], "x").n == 2
    assert mean_interval([2.0], "x").low == 0.0


def test_equal_counts_have_an_interval_of_no_width_and_say_so():
    estimate = paired_ratio(two_sides([6.0, 9.0], [2.0, 3.0]), "x", "y", value="score")
    assert (estimate.low, estimate.high) == pytest.approx((3.0, 3.0))
    assert "all 2 seeds give the same value" in estimate.note
    assert (estimate.p_above(2.9), estimate.p_above(3.1), estimate.detectable()) == (0.0, 1.0, 1.0)


def test_equal_accuracies_are_only_known_up_to_an_answer():
    # 2 runs with one changed answer in 200 each: 0.5 sqrt 2 points; t(0.975, 3) = 3.182
    estimate = paired_difference(two_sides([90.0] * 4, [90.0] * 4, rows=200), "x", "y")
    assert estimate.high == pytest.approx(3.1824 * 0.5 * math.sqrt(2), rel=1e-4)
    assert "one changed answer per run" in estimate.note
    assert estimate.rows == 200


def test_power_is_that_of_simulated_studies():
    estimate = Estimate(0.0, 4, se=0.15, df=3, sd=0.3)
    effect = estimate.detectable()
    draws = np.random.default_rng(1).normal(effect, 0.3, size=(40_000, 4))
    found = stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)
    assert estimate.n_needed(effect) == 4
    assert estimate.n_needed(0.99 * effect) == 5


def test_seeds_cannot_replace_rows():
    few_rows = Estimate(0.0, 4, se=0.25, df=5, sd=0.3, se_rows=0.2)
    assert few_rows.n_needed(0.5) > MAX_N
    assert few_rows.n_needed(1.0) < 10
    assert few_rows.n_needed(1e9) == few_rows.n_needed(math.inf) == 2
    assert Estimate(1.0, 4, se=0.15, df=3, sd=0.3, unit="x").n_needed(1.0) > MAX_N


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (mean_interval([0.7, 0.9], "points"), "+0.8 points [-0.471, +2.07] (n=2 seeds)"),
        (mean_interval([2.0, 2.0], "x"), "2x [2, 2] (n=2 seeds)"),
        (mean_interval([0.5]), "0.5 (n=1 seed, no interval)"),
        (mean_interval([]), "no value"),
    ],
)
def test_estimates_read_as_a_person_would_write_them(estimate, text):
    assert str(estimate) == text


# Rows are sampled as well


def crossed(rng, seeds, rows, by_seed, by_row, residual, studies=1):
    """Draw d_sr = a_s + b_r + e_sr with mean 0, in points."""
    shape = (studies, seeds, rows)
    return (
        by_seed * rng.normal(size=(studies, seeds, 1))
        + by_row * rng.normal(size=(studies, 1, rows))
        + residual * rng.normal(size=shape)
    )


def frame_of_table(table):
    """Runs of two sides whose answers differ by the table, a fraction per row."""
    frame = two_sides(100 * table.mean(axis=1), np.zeros(len(table)))
    frame["correct"] = [*table, *np.zeros_like(table)]
    return frame


def test_variance_components_are_those_of_an_analysis_of_variance():
    table = crossed(np.random.default_rng(2), 5, 40, 1.0, 3.0, 2.0)[0] / 100
    estimate = paired_difference(frame_of_table(table), "x", "y")
    points = 100 * table
    grand, of_seed, of_row = points.mean(), points.mean(axis=1, keepdims=True), points.mean(axis=0, keepdims=True)
    mean_square_row = 5 * np.sum((of_row - grand) ** 2) / 39
    mean_square_residual = np.sum((points - of_seed - of_row + grand) ** 2) / (4 * 39)
    assert estimate.se_rows**2 == pytest.approx((mean_square_row - mean_square_residual) / (5 * 40))
    assert estimate.se**2 == pytest.approx(of_seed.var(ddof=1) / 5 + estimate.se_rows**2)
    assert estimate.rows == 40


def test_rows_of_several_tasks_add_and_those_of_several_models_do_not():
    rng = np.random.default_rng(3)
    tables = {task: crossed(rng, 4, 60, 0.5, 5.0, 1.0)[0] / 100 for task in "ab"}
    by_task = [frame_of_table(table).assign(task=task, model="m") for task, table in tables.items()]
    alone = [paired_difference(frame, "x", "y").se_rows for frame in by_task]
    both = paired_difference(pd.concat(by_task, ignore_index=True), "x", "y")
    assert both.se_rows**2 == pytest.approx((alone[0] ** 2 + alone[1] ** 2) / 4)
    assert both.rows == 120
    twice = pd.concat([by_task[0], by_task[0].assign(model="n")], ignore_index=True)
    assert paired_difference(twice, "x", "y").se_rows == pytest.approx(alone[0])


def test_a_score_that_is_no_mean_over_rows_has_no_sampling_of_rows():
    frame = frame_of_table(crossed(np.random.default_rng(4), 3, 30, 1.0, 1.0, 1.0)[0] / 100)
    estimate = paired_difference(frame.assign(score=frame["score"] + 7 * frame["seed"]), "x", "y")
    assert estimate.se_rows == 0
    assert "no mean over rows" in estimate.note


@pytest.mark.parametrize("seeds", [2, 4])
@pytest.mark.parametrize("by_row", [0.0, 4.0, 12.0])
def test_intervals_cover_the_truth_over_seeds_and_rows(seeds, by_row):
    rng = np.random.default_rng([seeds, int(by_row)])
    covered = []
    for table in crossed(rng, seeds, 100, 1.0, by_row, 3.0, studies=600):
        estimate = paired_difference(frame_of_table(table / 100), "x", "y")
        covered.append(estimate.low <= 0 <= estimate.high)
    assert np.mean(covered) >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 600)


def crossed_bootstrap(table, rng, draws=500):
    """Means of a table whose seeds and rows are both drawn with replacement."""
    seeds, rows = table.shape
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
    of_rows = rng.multinomial(rows, np.full(rows, 1 / rows), size=draws) / rows
    return np.einsum("ds,sr,dr->d", of_seeds, table, of_rows, optimize=True)


def test_with_many_seeds_the_crossed_bootstrap_agrees():
    rng = np.random.default_rng(5)
    table = crossed(rng, 100, 400, 1.0, 3.0, 2.0)[0]
    estimate = paired_difference(frame_of_table(table / 100), "x", "y")
    means = crossed_bootstrap(table, rng, draws=4000)
    assert means.std() == pytest.approx(estimate.se, rel=0.06)
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx([estimate.low, estimate.high], abs=0.15 * estimate.se)


def test_with_four_seeds_a_bootstrap_is_far_too_narrow():
    rng = np.random.default_rng(6)
    missed = []
    for table in crossed(rng, 4, 50, 1.0, 1.0, 1.0, studies=400):
        low, high = np.quantile(crossed_bootstrap(table, rng, draws=200), [0.025, 0.975])
        missed.append(not low <= 0 <= high)
    assert np.mean(missed) > 0.12
