"""Wrong verdicts over a thousand made-up studies of known truth, for each kind of rule; seeds are fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.verdict_rates import NO_EFFECT, RULES, rates, rates_by_looks
from scala_lab.study.verdicts import LOOKS

STUDIES = 1000
ALLOWED = 0.05 + 2 * math.sqrt(0.05 * 0.95 / STUDIES)
"""5%, and two standard errors of a share of so many studies."""

BY_NAME = {rule.name: rule for rule in RULES}
SKIPPED = {("four parts", "paper's"), ("four parts", "reversed"), ("slope", "paper's, -0.2"), ("slope", "reversed")}
"""Truths that are told apart more easily than others which are tried."""
CASES = [
    (rule.name, truth)
    for rule in RULES
    for truth in rule.truths
    if rule.name != "branches" and (rule.name, truth) not in SKIPPED
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "truth"), CASES)
def test_wrong_verdicts_are_rare(name, truth):
    rule = BY_NAME[name]
    values, wrong = rule.truths[truth]
    shares = rates(rule, values, 4, STUDIES)
    assert sum(shares[verdict] for verdict in wrong) <= ALLOWED, shares


@pytest.mark.parametrize("truth", ["none", "half of it"])
def test_wrong_verdicts_are_rare_when_results_are_looked_at_three_times(truth):
    rule = BY_NAME["ratios"]
    values, wrong = rule.truths[truth]
    shares = rates_by_looks(rule, values, STUDIES)
    assert sum(shares[verdict] for verdict in wrong) <= ALLOWED, shares


def test_three_looks_together_find_an_effect_of_zero_in_at_most_one_study_of_twenty():
    draws = np.random.default_rng(0).normal(size=(200_000, max(LOOKS)))
    found = [stats.ttest_1samp(draws[:, :seeds], 0, axis=1).pvalue < 1 - level for seeds, level in LOOKS.items()]
    assert np.any(found, axis=0).mean() < 0.05


def test_with_eight_seeds_the_paper_is_found_and_a_null_is_called_one():
    rule = BY_NAME["effect"]
    assert rates(rule, {"ScaLA": 0.8}, 8, 200)["supported"] > 0.95
    assert rates(rule, {"ScaLA": 0.0}, 8, 200)[NO_EFFECT] > 0.8
