from __future__ import annotations

import numpy as np
import pytest

from scala_lab.theory.minimax import descend, envelope_gradients, grouped_problem, off_by, printed_batch


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 2.0), (5.0, 50.0)])
def test_every_group_moves_by_its_rate_along_its_gradient(lower, upper):
    problem, rng = grouped_problem(4.0), np.random.default_rng(0)
    start = rng.normal(scale=2, size=(5, 4, 4))
    huge = 10**12  # so many samples that nothing of the noise is left
    first, second = descend(problem, start, off_by(0.0), 100, lower, upper, huge, np.array([0, 1]), rng)
    assert (first == start).all()
    lengths = np.linalg.norm(second - first, axis=-1)
    assert lengths == pytest.approx(np.clip(np.linalg.norm(start, axis=-1), lower, upper) / (upper * 10))
    gradient = problem.worst_gradient(start)
    cosines = -((second - first) * gradient).sum(-1) / lengths / np.linalg.norm(gradient, axis=-1)
    assert cosines == pytest.approx(1, abs=1e-4)


def test_batch_grows_with_the_steps_and_the_formula_gives_none_at_lower_0():
    problem = grouped_problem(1.0)
    assert printed_batch(problem, 4000, 4.0, 8.0) == pytest.approx(10 * printed_batch(problem, 400, 4.0, 8.0), rel=1e-2)
    assert printed_batch(problem, 4000, 0.0, 8.0) == 1


def squares(found, steps):
    return np.array(found[f"squared_gradient_{steps}"])


def test_squared_gradient_falls_like_the_root_of_the_steps_and_below_the_bound():
    found = envelope_gradients([], steps=[64, 1024], replicas=8)
    slopes = np.log(squares(found, 1024) / squares(found, 64)) / np.log(1024 / 64)
    assert slopes.mean() == pytest.approx(-0.5, abs=0.05)
    assert squares(found, 64).mean() < found["bound_64"]
    assert found["batches"][1] == pytest.approx(16 * found["batches"][0], rel=0.01)


def test_settings_are_paired_and_repeat_to_the_bit():
    found = envelope_gradients([], steps=[64], replicas=4)
    assert found == envelope_gradients([], steps=[64], replicas=4)
    nearly = envelope_gradients([], steps=[64], replicas=4, epsilon=1e-12)
    assert squares(nearly, 64) == pytest.approx(squares(found, 64), rel=1e-3)


def test_wide_clip_breaks_the_printed_constant():
    found = envelope_gradients([], steps=[256], replicas=8, kappa=1.0, upper=128.0)
    assert squares(found, 256).mean() > found["bound_256"]
