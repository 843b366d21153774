from __future__ import annotations

import numpy as np
import pytest

from scala_lab.theory.minimax import envelope, envelope_gradient, grouped_problem, proximal_point


def starts(count=40, seed=0):
    return np.random.default_rng(seed).normal(scale=3, size=(count, 4, 4))


@pytest.mark.parametrize("kappa", [1.0, 16.0])
def test_gradient_is_a_central_difference_of_the_envelope(kappa):
    problem, x = grouped_problem(kappa), starts(6)
    gradient, step = envelope_gradient(problem, x, 1e-10), 1e-4
    for place in [(0, 0), (1, 3), (3, 2)]:
        move = np.zeros_like(x)
        move[(slice(None), *place)] = step
        slope = (envelope(problem, x + move, 1e-10) - envelope(problem, x - move, 1e-10)) / (2 * step)
        assert slope == pytest.approx(gradient[(slice(None), *place)], rel=1e-5, abs=1e-6)


def test_nothing_nearby_or_far_is_better_than_the_proximal_point():
    problem, x = grouped_problem(4.0), starts()
    nearest = proximal_point(problem, x)

    def objective(z):
        return problem.worst_value(z) + (problem.alphas_H[:, None] * (z - x) ** 2).sum((-2, -1))

    best = objective(nearest)
    for seed, scale in enumerate([1e-3, 1e-1, 1.0, 3.0]):
        assert (objective(nearest + scale * starts(seed=seed + 1)) >= best).all()


def test_tolerance_bounds_the_error():
    problem, x = grouped_problem(16.0), starts()
    exact = proximal_point(problem, x, 1e-12)
    for tol in (1e-2, 1e-5):
        error = np.sqrt((problem.alphas_H[:, None] * (proximal_point(problem, x, tol) - exact) ** 2).sum((-2, -1)))
        assert (error <= tol).all()


def test_envelope_lies_below_g_and_shares_its_minimum():
    problem, x = grouped_problem(4.0), starts()
    assert (envelope(problem, x) <= problem.worst_value(x)).all()
    assert (envelope(problem, x) >= 0).all()
    origin = np.zeros((1, 4, 4))
    assert envelope(problem, origin) == pytest.approx(0, abs=1e-12)
    assert np.abs(envelope_gradient(problem, origin)).max() < 1e-6
