from __future__ import annotations

import numpy as np
import pytest
import torch

from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.errors import UserError
from tests.curvature.dense import dense_hessian, tiny_batches, tiny_classifier
from tests.tiny import ARCHITECTURES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_ends_of_the_spectrum_against_the_dense_matrix(tmp_path, architecture):
    model, batches = tiny_classifier(tmp_path, architecture), tiny_batches()
    values = torch.linalg.eigvalsh(dense_hessian(tmp_path, batches)).flip(0).numpy()
    op = HessianOperator(model, batches)
    top = top_eigenpairs(op, k=5, tol=1e-7)
    assert top.converged
    assert np.allclose(top.eigenvalues, values[:5], rtol=1e-6)
    bottom = top_eigenpairs(op, k=2, tol=1e-7, which="smallest")
    assert np.allclose(bottom.eigenvalues, values[::-1][:2], rtol=1e-6)


@pytest.mark.parametrize("solver", ["lanczos", "power"])
@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("most", [4, 400])
def test_residuals_are_true_and_decide_convergence(tmp_path, solver, tol, most):
    op = HessianOperator(tiny_classifier(tmp_path), tiny_batches())
    found = top_eigenpairs(op, k=2, tol=tol, solver=solver, max_products=most)
    vectors = found.eigenvectors
    assert found.hvps <= most
    for vector, value, residual in zip(vectors, found.eigenvalues, found.residuals, strict=True):
        assert float(vector.norm()) == pytest.approx(1)
        true = float((op @ vector - value * vector).norm()) / abs(value)
        assert true == pytest.approx(residual, rel=1e-3, abs=1e-9)
    assert found.converged == (len(found.eigenvalues) == 2 and bool((found.residuals <= tol).all()))


class Diagonal:
    """A known matrix in place of a Hessian."""

    def __init__(self, values):
        self.values = torch.tensor(values, dtype=torch.float64)
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.products = 0
        self.space = type("Space", (), {"touched_size": len(values), "full": staticmethod(lambda vector: vector)})()

    def multiply(self, vector):
        self.products += 1
        return self.values * vector


def test_power_iteration_shifts_past_a_negative_eigenvalue_of_larger_magnitude():
    found = top_eigenpairs(Diagonal([-10.0, 4.0, 1.0, 0.5]), k=1, tol=1e-6, solver="power", max_products=2000)
    assert found.eigenvalues[0] == pytest.approx(4)
    assert "shift" in found.note
    assert found.converged


def test_power_iteration_finds_several_and_the_most_negative():
    op = Diagonal([6.0, 4.0, -9.0, 1.0, -2.0])
    assert top_eigenpairs(op, k=3, tol=1e-6, solver="power", max_products=9000).eigenvalues == pytest.approx([6, 4, 1])
    smallest = top_eigenpairs(op, k=2, tol=1e-6, solver="power", which="smallest", max_products=9000)
    assert smallest.eigenvalues == pytest.approx([-9, -2])


def test_lanczos_spends_one_product_per_vector_and_stops_in_an_invariant_subspace():
    op = Diagonal([3.0, 3.0, 1.0, 0.0, 0.0])
    found = top_eigenpairs(op, k=2, tol=1e-10)
    assert found.hvps == op.products <= 3
    # a double eigenvalue shows once: one start vector reaches one direction of its space
    assert found.eigenvalues[0] == pytest.approx(3)


def test_more_pairs_than_reachable_is_not_called_converged():
    found = top_eigenpairs(Diagonal([2.0, 2.0, 2.0]), k=2, tol=1e-3)
    assert not found.converged
    assert "only 1 of 2" in found.note


def test_same_seed_same_result(tmp_path):
    op = HessianOperator(tiny_classifier(tmp_path), tiny_batches())
    first, second = (top_eigenpairs(op, k=2, seed=4) for _ in range(2))
    assert np.array_equal(first.eigenvalues, second.eigenvalues)


@pytest.mark.parametrize(("arguments", "words"), [({"k": 0}, "between 1 and"), ({"tol": 0.0}, "tol must be positive")])
def test_bad_requests(arguments, words):
    with pytest.raises(UserError, match=words):
        top_eigenpairs(Diagonal([1.0, 2.0]), **arguments)
