"""Lanczos with full reorthogonalisation.

After m products H V_m = V_m T_m + beta_m v_{m+1} e_m^T with orthonormal V_m and tridiagonal T_m. An eigenpair
(theta, s) of T_m gives the pair (theta, V_m s) of H with residual ||H x - theta x|| = |beta_m s_m|, known without a
further product. Every new vector is orthogonalised against all earlier ones, twice, which keeps V_m
orthonormal to rounding: no eigenvalue appears twice, and the residual formula stays true.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from scala_lab.curvature.eigen import EigenResult, Operator, Which, random_start


class KrylovBasis:
    """Orthonormal vectors that grow by one product at a time, and the matrix T of the operator among them."""

    def __init__(self, op: Operator, start: Tensor, room: int = 32) -> None:
        self.op = op
        self.room = room
        self.vectors = start.new_empty(room, len(start))
        self.vectors[0] = start / start.norm()
        self.alphas: list[float] = []
        self.betas: list[float] = []

    @property
    def size(self) -> int:
        """Vectors that have been multiplied."""
        return len(self.alphas)

    def extend(self) -> None:
        """Multiply the newest vector and orthogonalise the result against all."""
        count = self.size + 1
        basis = self.vectors[:count]
        new = self.op.multiply(basis[-1])
        self.alphas.append(float(basis[-1] @ new))
        for _ in range(2):
            new -= basis.T @ (basis @ new)
        self.betas.append(float(new.norm()))
        if count == len(self.vectors):
            self.vectors = torch.cat([self.vectors, self.vectors.new_empty(self.room, self.vectors.shape[1])])
        if not self.exhausted:
            self.vectors[count] = new / self.betas[-1]

    @property
    def exhausted(self) -> bool:
        """Whether the vectors span an invariant subspace, so that there is nothing to add."""
        scale = max(map(abs, self.alphas)) + max(self.betas[:-1], default=0.0)
        epsilon = torch.finfo(self.vectors.dtype).eps
        return self.size >= self.vectors.shape[1] or self.betas[-1] <= 10 * epsilon * max(scale, 1e-30)

    def restart(self, start: Tensor) -> None:
        """Go on outside an exhausted subspace, from the part of a vector that is orthogonal to it."""
        basis = self.vectors[: self.size]
        for _ in range(2):
            start = start - basis.T @ (basis @ start)
        self.betas[-1] = 0.0
        self.vectors[self.size] = start / start.norm()

    def ritz_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Eigenvalues of T ascending, its eigenvectors as columns, and the error ||H x - theta x|| of each.

        The error is |beta_m s_m|, but never less than the rounding of the vectors, eps * ||T||.
        """
        values, vectors = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas[:-1]))
        rounding = torch.finfo(self.vectors.dtype).eps * np.abs(values).max()
        return values, vectors, np.maximum(abs(self.betas[-1] * vectors[-1]), rounding)

    def combine(self, coefficients: np.ndarray) -> Tensor:
        """Unit vectors V s, one per row, for coefficients s as columns."""
        weights = torch.as_tensor(coefficients.T.copy()).to(self.vectors)
        combined = weights @ self.vectors[: self.size]
        return combined / combined.norm(dim=1, keepdim=True)


def lanczos(op: Operator, k: int, tol: float, which: Which, max_products: int, seed: int) -> EigenResult:
    """Extreme eigenpairs; see `top_eigenpairs`."""
    basis = KrylovBasis(op, random_start(op, seed))
    while True:
        basis.extend()
        values, vectors, errors = basis.ritz_pairs()
        order = np.argsort(-values if which == "largest" else values)[:k]
        residuals = errors[order] / np.maximum(np.abs(values[order]), np.finfo(float).tiny)
        converged = len(order) == k and bool((residuals <= tol).all())
        if converged or basis.size >= max_products or (basis.exhausted and len(order) == k):
            break
        if basis.exhausted:  # a multiple eigenvalue shows once in each subspace
            basis.restart(random_start(op, seed + basis.size))
    return EigenResult(values[order], basis.combine(vectors[:, order]), residuals, basis.size, converged, tol, op.space)
