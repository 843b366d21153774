from __future__ import annotations

import numpy as np
import pytest
import torch

from scala_lab.curvature import top_eigenpairs
from scala_lab.errors import UserError
from tests.curvature.dense import Known


def test_both_ends_of_the_spectrum_against_the_dense_matrix(every):
    values = torch.linalg.eigvalsh(every.matrix).flip(0).numpy()
    top = top_eigenpairs(every.op, k=5, tol=1e-7)
    assert top.converged
    assert np.allclose(top.eigenvalues, values[:5], rtol=1e-6)
    bottom = top_eigenpairs(every.op, k=2, tol=1e-7, which="smallest")
    assert bottom.converged
    assert bottom.eigenvalues[0] < 0
    assert np.allclose(bottom.eigenvalues, values[::-1][:2], rtol=1e-6)


@pytest.mark.parametrize("solver", ["lanczos", "power"])
@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("limit", [3, 4, 9, 30, 400])
@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_residuals_are_true_and_decide_convergence(case, solver, tol, limit, which):
    op = Known(case.matrix)
    result = top_eigenpairs(op, k=3, tol=tol, solver=solver, max_products=limit, which=which)
    assert result.hvps == op.products <= limit
    assert len(result.eigenvalues) == len(result.residuals) == len(result.eigenvectors) == 3
    for vector, value, residual in zip(result.eigenvectors, result.eigenvalues, result.residuals, strict=True):
        assert float(vector.norm()) == pytest.approx(1)
        true = float((case.matrix @ vector - value * vector).norm()) / abs(value)
        # below the rounding of vectors, the reported residual is that rounding
        assert true == pytest.approx(residual, rel=1e-3, abs=1e-9)
    assert result.converged == bool((result.residuals <= tol).all())


def diagonal(*values):
    return Known(torch.diag(torch.tensor(values, dtype=torch.float64)))


def test_power_iteration_shifts_past_a_negative_eigenvalue_of_larger_magnitude():
    result = top_eigenpairs(diagonal(-10.0, 4.0, 1.0, 0.5), k=1, tol=1e-6, solver="power", max_products=2000)
    assert result.eigenvalues[0] == pytest.approx(4)
    assert "shift" in result.note
    assert result.converged


def test_power_iteration_finds_several_and_the_most_negative():
    op = diagonal(6.0, 4.0, -9.0, 1.0, -2.0)
    assert top_eigenpairs(op, k=3, tol=1e-6, solver="power", max_products=9000).eigenvalues == pytest.approx([6, 4, 1])
    smallest = top_eigenpairs(op, k=2, tol=1e-6, solver="power", which="smallest", max_products=9000)
    assert smallest.eigenvalues == pytest.approx([-9, -2])


def test_lanczos_spends_one_product_per_vector_and_stops_in_an_invariant_subspace():
    op = diagonal(3.0, 3.0, 1.0, 0.0, 0.0)
    result = top_eigenpairs(op, k=2, tol=1e-10)
    assert result.hvps == op.products <= 3
    # a double eigenvalue shows once: one start vector reaches one direction of its space
    assert result.eigenvalues[0] == pytest.approx(3)


def test_an_eigenvalue_that_fills_the_space_is_found_as_often_as_asked_for():
    result = top_eigenpairs(diagonal(2.0, 2.0, 2.0), k=3, tol=1e-3)
    assert result.eigenvalues == pytest.approx([2, 2, 2])
    assert result.converged
    assert torch.allclose(result.eigenvectors @ result.eigenvectors.T, torch.eye(3, dtype=torch.float64))


def test_power_iteration_without_products_for_the_shift_does_not_call_the_wrong_end_converged():
    values = (-10.0, 4.0, 1.0, 0.5)
    needed = top_eigenpairs(diagonal(*values), solver="power", which="smallest").hvps
    for limit in range(1, needed + 3):
        result = top_eigenpairs(diagonal(*values), solver="power", max_products=limit)
        assert not result.converged
        assert result.residuals[0] > result.tol


def test_same_seed_same_result(case):
    first, second = (top_eigenpairs(case.op, k=2, seed=4) for _ in range(2))
    assert np.array_equal(first.eigenvalues, second.eigenvalues)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0}, "between 1 and 2, not 0"),
        ({"k": 3}, "between 1 and 2, not 3"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"k": 2, "max_products": 1}, "at least 2 products"),
    ],
)
def test_bad_requests(arguments, words):
    with pytest.raises(UserError, match=words):
        top_eigenpairs(diagonal(1.0, 2.0), **arguments)
