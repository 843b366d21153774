"""Wrong verdicts over made-up studies of known truth, for the rule of every claim; seeds are fixed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from verdict_rates import COUNTS, RULES, SIMULATIONS, cut, rates, vary, wrong_share

from scala_lab.study.verdicts import LOOKS, NO_EFFECT

STUDIES = 200
FEW = 40
"""Studies where the rule is called for every one."""
CASES = [(claim, name) for claim, simulation in SIMULATIONS.items() for name in simulation.truths]
MEANS = [claim for claim, simulation in SIMULATIONS.items() if simulation.means]


def allowed(studies):
    """The largest share of wrong verdicts that a rule which is wrong in one study of twenty has but once in 1,000."""
    return stats.binom.ppf(0.999, studies, 0.05) / studies


def test_every_claim_is_tried():
    assert set(SIMULATIONS) == set(RULES)


@pytest.mark.long
@pytest.mark.parametrize(("claim", "name"), CASES)
def test_wrong_verdicts_are_rare(claim, name):
    truth = SIMULATIONS[claim].truths[name]
    studies = STUDIES if SIMULATIONS[claim].means and not truth.answers else FEW
    for units, shares in rates(claim, name, studies).items():
        assert wrong_share(shares, truth) <= allowed(studies), (units, shares)


@pytest.mark.parametrize("claim", MEANS)
def test_estimates_of_many_studies_cut_into_one_are_those_of_the_one(claim):
    simulation, most = SIMULATIONS[claim], max(COUNTS)
    frame = vary(simulation.make(3 * most), np.random.default_rng(0))
    units = frame[simulation.unit]
    if "step" in frame:  # of runs and timed steps in one frame, the latter have no seed
        units = units.fillna(frame["step"])
    alone = RULES[claim](frame[(units >= most) & (units < most + 4)])
    found = cut(RULES[claim](frame), most, 4)
    assert [part.statement for part in found.parts] == [part.statement for part in alone.deciding]
    for part, expected in zip(found.parts, alone.deciding, strict=True):
        assert part.p_supported == pytest.approx(expected.p_supported, rel=1e-6, abs=1e-12)
        assert part.p_reversed == pytest.approx(expected.p_reversed, rel=1e-6, abs=1e-12)
        assert part.p_no_effect == pytest.approx(expected.p_no_effect, rel=1e-6, abs=1e-12)


def test_three_looks_together_find_an_effect_of_zero_in_at_most_one_study_of_twenty():
    draws = np.random.default_rng(0).normal(size=(200_000, max(LOOKS)))
    found = [stats.ttest_1samp(draws[:, :seeds], 0, axis=1).pvalue < 1 - level for seeds, level in LOOKS.items()]
    assert np.any(found, axis=0).mean() < 0.05


def test_with_eight_seeds_the_paper_is_found_and_a_null_is_called_one():
    assert rates("C15", "as claimed", STUDIES)["8"]["supported"] > 0.9
    assert rates("C15", "none", STUDIES)["8"][NO_EFFECT] > 0.4
