from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from scala_lab.theory.lemma import ascent_gaps, random_quadratic


def value(problem, y):
    """q(y)."""
    return problem.b @ y - 0.5 * y @ problem.A @ y


@pytest.mark.parametrize("kind", ["box", "sparse"])
@pytest.mark.parametrize("ratio", [1.1, 1.9])
def test_no_step_shrinks_the_gap_by_less_than_the_lemma_says(kind, ratio):
    result = {
        name: np.array(values)
        for name, values in ascent_gaps([], kind=kind, ratio=ratio, problems=20, steps=30).items()
    }
    assert (result["worst_factor"] <= ratio - 1).all()
    assert (result["factor"] < result["worst_factor"]).all()
    assert (result["left"] == 0).all()


def test_gap_is_the_difference_of_values():
    problem = random_quadratic("box", 1.5, np.random.default_rng(0))
    y = np.clip(np.random.default_rng(1).normal(size=16), -0.5, 0.5)
    assert problem.gap(y) == pytest.approx(value(problem, problem.best) - value(problem, y))
    assert problem.gap(y) > 0


def test_maximiser_in_the_box_is_that_of_a_general_solver():
    problem = random_quadratic("box", 1.9, np.random.default_rng(3))
    found = minimize(
        lambda y: -value(problem, y),
        np.zeros(16),
        jac=lambda y: problem.A @ y - problem.b,
        bounds=[(-0.5, 0.5)] * 16,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    assert problem.best == pytest.approx(found.x, abs=1e-6)
    assert (np.abs(problem.best) == pytest.approx(0.5)) or (np.abs(problem.best) >= 0.5 - 1e-9).any()


def test_eigenvalues_span_the_ratio_and_sparse_points_are_nearest():
    rng = np.random.default_rng(5)
    problem = random_quadratic("sparse", 1.7, rng)
    values = np.linalg.eigvalsh(problem.A)
    assert [values[0], values[-1]] == pytest.approx([1, 1.7])
    y = rng.normal(size=16)
    nearest = problem.project(y)
    assert (nearest != 0).sum() == 4
    for _ in range(200):
        other = np.zeros(16)
        places = rng.choice(16, 4, replace=False)
        other[places] = y[places]
        assert np.linalg.norm(y - nearest) <= np.linalg.norm(y - other)


def test_far_from_the_assumption_an_ascent_over_a_set_that_is_not_convex_can_stall():
    assert max(ascent_gaps([], kind="sparse", ratio=10.0, problems=30, steps=100)["left"]) > 1e-3
