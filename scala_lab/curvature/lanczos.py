"""Lanczos with full reorthogonalisation.

After m products H V_m = V_m T_m + beta_m v_{m+1} e_m^T with orthonormal V_m and tridiagonal T_m. An eigenpair
(theta, s) of T_m gives the pair (theta, V_m s) of H with residual ||H x - theta x|| = |beta_m s_m|, known without a
further product. Every new vector is orthogonalised against all earlier ones, a second time where the first took away a
good part of it (Kahan and Parlett: twice is enough), which keeps V_m orthonormal to rounding: no eigenvalue
appears twice, and the residual formula stays true.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from scala_lab.curvature.eigen import EigenResult, Operator, Which, random_start, uphill_start
from scala_lab.curvature.inner_products import dot, norm, subtract_projection


class KrylovBasis:
    """Orthonormal vectors that grow by one product at a time, and the matrix T of the operator among them.

    The vectors are rows of blocks: orthogonalising is a few products of a matrix with a vector, and growing copies
    nothing.

    Args:
        op: What multiplies.
        start: The first vector, of any length.
        room: Rows of a block.
    """

    def __init__(self, op: Operator, start: Tensor, room: int = 16) -> None:
        self.op = op
        self.room = room
        self.blocks: list[Tensor] = []
        self.alphas: list[float] = []
        self.betas: list[float] = []
        self._append(start / norm(start))

    @property
    def size(self) -> int:
        """Vectors that have been multiplied."""
        return len(self.alphas)

    def extend(self) -> None:
        """Multiply the newest vector and orthogonalise the result against all."""
        newest = self._row(self.size)
        new = self.op.multiply(newest)
        self.alphas.append(dot(newest, new))
        new.sub_(newest, alpha=self.alphas[-1])
        if self.betas:
            new.sub_(self._row(self.size - 2), alpha=self.betas[-1])
        before = norm(new)
        self._subtract_projection(new)
        self.betas.append(norm(new))
        if self.betas[-1] < 0.7 * before:
            self._subtract_projection(new)
            self.betas[-1] = norm(new)
        if not self.exhausted:
            self._append(new.div_(self.betas[-1]))

    def _subtract_projection(self, new: Tensor) -> None:
        """Make a vector orthogonal to all."""
        for rows in self._filled():
            subtract_projection(new, rows)

    def _append(self, vector: Tensor) -> None:
        if self.size == self.room * len(self.blocks):
            self.blocks.append(vector.new_empty(self.room, len(vector)))
        self._row(self.size).copy_(vector)

    def _row(self, number: int) -> Tensor:
        return self.blocks[number // self.room][number % self.room]

    def _filled(self) -> list[Tensor]:
        """The vectors that have been multiplied, block by block."""
        return [block[: max(0, self.size - place * self.room)] for place, block in enumerate(self.blocks)]

    @property
    def exhausted(self) -> bool:
        """Whether the vectors span an invariant subspace, so that there is nothing to add."""
        scale = max(map(abs, self.alphas)) + max(self.betas[:-1], default=0.0)
        epsilon = torch.finfo(self.op.dtype).eps
        return self.size >= self.blocks[0].shape[1] or self.betas[-1] <= 10 * epsilon * max(scale, 1e-30)

    def restart(self, start: Tensor) -> None:
        """Go on outside an exhausted subspace, from the part of a vector that is orthogonal to it."""
        start = start.clone()
        for _ in range(2):
            self._subtract_projection(start)
        self.betas[-1] = 0.0
        self._append(start.div_(norm(start)))

    def ritz_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Eigenvalues of T ascending, its eigenvectors as columns, and the error ||H x - theta x|| of each.

        The error is |beta_m s_m|, but never less than the rounding of the vectors, eps * ||T||.
        """
        values, vectors = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas[:-1]))
        rounding = torch.finfo(self.op.dtype).eps * np.abs(values).max()
        return values, vectors, np.maximum(abs(self.betas[-1] * vectors[-1]), rounding)

    def combine(self, coefficients: np.ndarray) -> Tensor:
        """Unit vectors V s, one per row, for coefficients s as columns."""
        weights = torch.as_tensor(coefficients.T.copy()).to(self.blocks[0])
        combined = weights.new_zeros(len(weights), self.blocks[0].shape[1])
        for part, rows in zip(weights.split(self.room, dim=1), self._filled(), strict=False):
            combined.addmm_(part, rows)
        for vector in combined:
            vector /= norm(vector)
        return combined


def lanczos(op: Operator, k: int, tol: float, which: Which, max_products: int, seed: int) -> EigenResult:
    """Extreme eigenpairs; see `top_eigenpairs`."""
    basis = KrylovBasis(op, uphill_start(op, seed))
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
