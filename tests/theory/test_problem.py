from __future__ import annotations

import numpy as np
import pytest

from scala_lab.theory.minimax import grouped_problem

STEP = 1e-5


def points(seed=0, count=200, groups=4, width=4):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=4, size=(count, groups, width)), rng.uniform(-1, 1, (count, width))


def central_difference(function, point):
    """Of a function of the last axes, one coordinate after another."""
    found = np.zeros_like(point)
    for place in np.ndindex(point.shape[1:]):
        move = np.zeros_like(point)
        move[(slice(None), *place)] = STEP
        found[(slice(None), *place)] = (function(point + move) - function(point - move)) / (2 * STEP)
    return found


@pytest.mark.parametrize("kappa", [1.0, 16.0])
def test_gradients_are_central_differences(kappa):
    problem = grouped_problem(kappa)
    x, y = points()
    assert problem.gradient_x(x, y) == pytest.approx(
        central_difference(lambda z: problem.value(z, y), x), rel=1e-6, abs=1e-8
    )
    assert problem.gradient_y(x, y) == pytest.approx(
        central_difference(lambda z: problem.value(x, z), y), rel=1e-6, abs=1e-8
    )
    assert problem.worst_gradient(x) == pytest.approx(
        central_difference(problem.worst_value, x),
        rel=1e-4,
        abs=1e-6,  # kinks of the clip add O(step)
    )


def test_best_response_beats_a_fine_grid():
    problem = grouped_problem(4.0)
    x, _ = points(count=50)
    best = problem.worst_value(x)
    for y in np.linspace(-problem.omega, problem.omega, 41):
        for coordinate in range(x.shape[-1]):
            other = problem.best_response(x)
            other[:, coordinate] = y
            assert (problem.value(x, other) <= best + 1e-12).all()


def test_constants_bound_what_they_say_and_are_nearly_reached():
    problem = grouped_problem(8.0)
    x, y = points(count=20000)
    gradient = problem.gradient_x(x, y)
    assert np.abs(gradient).max() <= problem.gradient_bound
    assert np.abs(gradient).max() > 0.8 * problem.gradient_bound
    other, _ = points(seed=1, count=20000)
    near = x + 1e-3 * other
    change = np.linalg.norm(problem.gradient_x(near, y) - gradient, axis=-1) / np.linalg.norm(near - x, axis=-1)
    assert (change <= problem.alphas_H).all()
    assert (change.max(0) > 0.6 * problem.alphas_H).all()
    assert problem.alphas_H.max() / problem.alphas_H.min() == pytest.approx(8)


def test_it_is_convex_at_some_points_and_concave_at_others():
    problem = grouped_problem(1.0)
    x, y = points()
    move = 1e-2 * np.random.default_rng(2).normal(size=x.shape)
    bends = problem.value(x + move, y) - 2 * problem.value(x, y) + problem.value(x - move, y)
    assert (bends < -1e-4).any()
    assert (bends > 1e-4).any()


@pytest.mark.parametrize("batch", [1, 100])
def test_noise_is_unbiased_and_shrinks_with_the_batch(batch):
    problem = grouped_problem(4.0)
    x, y = np.zeros((40000, 4, 4)), np.zeros((40000, 4))
    noise = problem.noisy_gradient_x(x, y, batch, np.random.default_rng(0)) - problem.gradient_x(x, y)
    size = problem.deviations_H / np.sqrt(batch)
    # 40000 draws: means within five standard errors, variances within a few percent although skewed
    assert (np.abs(noise.mean(0)) < 5 * size[:, None] / 2 / 200).all()
    assert np.sqrt((noise**2).sum(-1).mean(0)) == pytest.approx(size, rel=0.05)
