from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import t

from scala_lab.curvature import top_eigenpairs
from scala_lab.curvature.spectrum import trace
from scala_lab.errors import UserError
from tests.curvature.dense import Known


def interval(result, level):
    """Confidence interval of that level, by Student's t."""
    reach = float(t.ppf(0.5 + level / 2, len(result.samples) - 1)) * result.error
    return result.trace - reach, result.trace + reach


def test_trace_of_the_dense_matrix_lies_within_the_error_bar(every):
    found = trace(every.op, tol=1e-3, max_products=100)
    truth = float(every.matrix.trace())
    assert found.hvps == len(found.samples) == 100
    assert abs(found.trace - truth) < 3 * found.error
    low, high = interval(found, 0.99)
    assert low < truth < high
    # the bar is no wider than it must be: one probe's variance is twice the squared off-diagonal entries
    off = every.matrix - torch.diag(every.matrix.diag())
    assert found.error * np.sqrt(100) == pytest.approx(float((2 * off.square().sum()).sqrt()), rel=0.3)


def test_error_bar_covers_the_truth_as_often_as_it_says(case):
    op, truth = Known(case.matrix), float(case.matrix.trace())
    results = [trace(op, tol=1e-9, max_products=20, seed=seed) for seed in range(200)]
    covered = np.mean([low < truth < high for low, high in (interval(found, 0.9) for found in results)])
    assert 0.83 < covered < 0.97
    means = np.array([found.trace for found in results])
    assert abs(means.mean() - truth) < 3 * means.std() / np.sqrt(len(means))


@pytest.mark.parametrize("products", [8, 300])
def test_known_eigenpairs_shrink_the_error_and_bias_nothing_converged_or_not(case, products):
    op, matrix = case.op, case.matrix
    known = top_eigenpairs(op, k=6, tol=1e-8, max_products=products)
    assert known.converged == (products == 300)
    cheap = Known(matrix)
    full = known.eigenvectors
    known_full = type("Known", (), {"eigenvalues": known.eigenvalues, "touched_eigenvectors": full})()
    truth = float(matrix.trace())
    means = np.array([trace(cheap, 1e-9, 20, seed, known=known_full).trace for seed in range(200)])
    assert abs(means.mean() - truth) < 3 * means.std() / np.sqrt(len(means))
    plain = np.array([trace(cheap, 1e-9, 20, seed).trace for seed in range(200)])
    assert means.std() < (0.9 if products == 300 else 1.1) * plain.std()
    within = trace(op, 1e-9, 60, known=known)
    assert abs(within.trace - truth) < 3.5 * within.error


def test_stops_when_the_error_is_within_the_tolerance():
    matrix = torch.diag(torch.linspace(1, 2, 200, dtype=torch.float64))
    matrix[0, 1] = matrix[1, 0] = 3.0
    found = trace(Known(matrix), tol=0.01, max_products=500)
    assert found.converged
    assert 10 <= found.hvps < 100
    assert found.error <= 0.01 * abs(found.trace)
    hard = trace(Known(matrix), tol=1e-9, max_products=12)
    assert not hard.converged
    assert hard.hvps == 12
    assert hard.error > 1e-9 * abs(hard.trace)


def test_a_seed_gives_one_answer(case):
    first, second, other = (trace(case.op, 1e-9, 5, seed) for seed in (3, 3, 4))
    assert np.array_equal(first.samples, second.samples)
    assert not np.array_equal(first.samples, other.samples)


@pytest.mark.parametrize(("options", "words"), [({"max_products": 1}, "at least 2 probes"), ({"tol": 0.0}, "positive")])
def test_bad_numbers_are_refused(case, options, words):
    with pytest.raises(UserError, match=words):
        trace(case.op, **options)
