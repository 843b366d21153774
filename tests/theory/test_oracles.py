from __future__ import annotations

import itertools

import numpy as np
import pytest

from scala_lab.theory.minimax import ascent, grouped_problem, off_by


def starts(count=300):
    return np.random.default_rng(0).normal(scale=3, size=(count, 4, 4))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1])
def test_it_gives_away_exactly_epsilon(epsilon):
    problem, x = grouped_problem(4.0), starts()
    y = off_by(epsilon)(problem, x)
    assert (np.abs(y) <= problem.omega + 1e-12).all()
    lost = problem.worst_value(x) - problem.value(x, y)
    assert (lost <= epsilon + 1e-12).all()  # values of some 50 are subtracted: 1e-14 is rounding
    assert np.median(lost) == pytest.approx(epsilon, rel=1e-6)


def test_without_error_it_is_the_maximiser():
    problem, x = grouped_problem(4.0), starts()
    assert off_by(0.0)(problem, x) == pytest.approx(problem.best_response(x))


def test_ascent_keeps_to_the_lemmas_rate_and_reaches_the_maximiser():
    problem, x = grouped_problem(4.0), starts()
    ratio = problem.concavity_D.max() / problem.concavity_D.min()
    gaps = [problem.worst_value(x) - problem.value(x, ascent(steps)(problem, x)) for steps in range(1, 8)]
    for before, after in itertools.pairwise(gaps):
        assert (after <= (ratio - 1) * before + 1e-14).all()
    assert ascent(60)(problem, x) == pytest.approx(problem.best_response(x), abs=1e-9)
