"""Extreme eigenpairs of a symmetric operator by power iteration or Lanczos, each with its residual.

Inner products of vectors of millions of numbers, as exact as the numbers are.

torch sums a long float32 product in float32: most entries of an eigenvector are so much smaller than the sum so far
that they are lost on it. On an encoder of 5.7M touched parameters the norm of a top eigenvector came out 0.12% short, a
matrix-vector product 0.4%, more than any tolerance asked for. Here parts are summed in float32 and added in float64.

What a solver of eigenpairs gets and gives: a symmetric operator, and pairs each with the evidence that it is one.

Every result carries the residual ||H v - lambda v|| / |lambda| of each pair, the number of products and whether all
residuals are within the tolerance. A result always has the number of pairs that was asked for, so one that has not
converged shows it by a residual above the tolerance.

Power iteration with deflation, the paper's method.

It finds the eigenvalue of largest magnitude first. When that one has the wrong sign (negative while the largest
is asked for), the iteration starts again with H + s I, s a little more than the magnitude found, and the result says
so. Further pairs are sought orthogonal to those found; since an error in an early vector would stay in all later
ones, values and residuals are those of the best combinations of all vectors (Rayleigh-Ritz), which costs no
further product.

Lanczos with full reorthogonalisation.

After m products H V_m = V_m T_m + beta_m v_{m+1} e_m^T with orthonormal V_m and tridiagonal T_m. An eigenpair
(theta, s) of T_m gives the pair (theta, V_m s) of H with residual ||H x - theta x|| = |beta_m s_m|, known without a
further product. Every new vector is orthogonalised against all earlier ones, a second time where the first took away a
good part of it (Kahan and Parlett: twice is enough), which keeps V_m orthonormal to rounding: no eigenvalue
appears twice, and the residual formula stays true.

Extreme eigenpairs of a Hessian operator, by the solver asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from scala_lab.curvature.loss import ParameterSpace
from scala_lab.errors import UserError

PART = 1 << 13
"""Numbers that are summed in float32: the error is some 1e-6 of the lengths' product; the cost that of one sum."""


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """<row of left, row of right> of each pair of rows, in float64."""
    whole = left.shape[1] // PART * PART
    parts, others = (rows[:, :whole].unflatten(1, (-1, PART)).transpose(0, 1) for rows in (left, right))
    total = torch.bmm(parts, others.transpose(1, 2)).sum(0, dtype=torch.float64)
    return total + left[:, whole:] @ right[:, whole:].T


def dot(left: Tensor, right: Tensor) -> float:
    """<left, right> of two vectors."""
    return float(inner_products(left[None], right[None]))


def norm(vector: Tensor) -> float:
    """Euclidean length."""
    return dot(vector, vector) ** 0.5


def subtract_projection(vector: Tensor, orthonormal: Tensor) -> None:
    """Make a vector orthogonal to orthonormal rows, in place, to the rounding of its length before."""
    shares = inner_products(orthonormal, vector[None])[:, 0].to(vector.dtype)
    vector.addmv_(orthonormal.T, shares, alpha=-1)


Which = Literal["largest", "smallest"]


class Operator(Protocol):
    """A symmetric matrix that multiplies touched vectors."""

    space: ParameterSpace
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        ...

    def multiply(self, touched: Tensor) -> Tensor:
        """H v."""
        ...

    def gradient(self) -> Tensor:
        """The gradient of what H is the Hessian of, as a touched vector."""
        ...


@dataclass(frozen=True)
class EigenResult:
    """Eigenpairs with their evidence.

    Attributes:
        eigenvalues: In the order asked for: largest first, or most negative first.
        eigenvectors: Touched unit vectors, one per row; `full_eigenvectors` gives them over all parameters.
        residuals: ||H v - lambda v|| / |lambda| of each pair.
        hvps: Products spent.
        converged: Whether every residual is at most `tol`.
        tol: The tolerance.
        note: What a reader should know, such as a shift that was needed; '' for nothing.
    """

    eigenvalues: np.ndarray
    touched_eigenvectors: Tensor
    residuals: np.ndarray
    hvps: int
    converged: bool
    tol: float
    space: ParameterSpace
    note: str = ""

    @property
    def eigenvectors(self) -> Tensor:
        """Unit vectors over all parameters, one per row."""
        return self.space.full(self.touched_eigenvectors)


def random_start(op: Operator, seed: int) -> Tensor:
    """A random unit vector, the same on every worker."""
    rng = torch.Generator().manual_seed(seed)
    start = torch.randn(op.space.touched_size, generator=rng, dtype=torch.float32).to(op.device, op.dtype)
    return start / norm(start)


def uphill_start(op: Operator, seed: int) -> Tensor:
    """A unit vector of equal parts chance and gradient, which in trained networks lies among the top eigenvectors.

    On a fine-tuned encoder it saves two of 24 products for the five largest eigenvalues. The random part keeps every
    eigenvector within reach.
    """
    start, gradient = random_start(op, seed), op.gradient()
    size = norm(gradient)
    if not 0 < size < float("inf"):
        return start
    start += gradient / size
    return start / norm(start)


def power_iteration(op: Operator, k: int, tol: float, which: Which, max_products: int, seed: int) -> EigenResult:
    """Extreme eigenpairs, one after another; see `top_eigenpairs`."""
    search = _Search(op, 1.0 if which == "largest" else -1.0, tol)
    for number in range(k):
        left_for_others = k - number - 1
        search.find(random_start(op, seed + number), most=max_products - left_for_others)
    values, vectors, residuals = search.pairs()
    converged = bool((residuals <= tol).all())
    return EigenResult(values, vectors, residuals, search.spent, converged, tol, op.space, search.note)


class _Search:
    """Vectors found so far with their products, and the iteration for the next one."""

    def __init__(self, op: Operator, sign: float, tol: float) -> None:
        self.op, self.sign, self.tol = op, sign, tol
        self.vectors: list[Tensor] = []
        self.products: list[Tensor] = []
        self.spent = 0
        self.shift = 0.0
        self.note = ""

    def find(self, start: Tensor, most: int) -> None:
        """Iterate v <- (sign * H + shift) v until every pair is within the tolerance, or `most` products are spent.

        A pair of the wrong sign is never kept, even when no product is left to look for the right one.
        """
        vector = self._apart(start, self.vectors)
        first: tuple[Tensor, Tensor] | None = None
        while True:
            product = self.op.multiply(vector)
            self.spent += 1
            first = first or (vector, product)
            found = self.vectors, self.products
            self.vectors, self.products = [*self.vectors, vector], [*self.products, product]
            settled = bool((self.pairs()[2] <= self.tol).all())
            value = dot(vector, product)
            wrong = settled and self.sign * value < 0 and self.shift < abs(value)
            if wrong and self.spent >= most:
                self.vectors, self.products = [*found[0], first[0]], [*found[1], first[1]]
            if self.spent >= most or (settled and not wrong):
                return
            self.vectors, self.products = found
            if wrong:
                self.shift = 1.01 * abs(value)
                self.note = f"the eigenvalue of largest magnitude is {value:.6g}: shifted by {self.shift:.6g}"
                vector = self._apart(start, self.vectors)
            else:
                vector = self._apart(self.sign * product + self.shift * vector, self.vectors)

    def pairs(self) -> tuple[np.ndarray, Tensor, np.ndarray]:
        """Values in the order asked for, unit vectors as rows, and residuals."""
        vectors, products = torch.stack(self.vectors), torch.stack(self.products)
        small = inner_products(vectors, products).cpu().numpy()
        values, rotation = np.linalg.eigh((small + small.T) / 2)
        order = np.argsort(-self.sign * values)
        values = values[order]
        weights = torch.as_tensor(rotation[:, order].T.copy()).to(vectors)
        vectors, products = weights @ vectors, weights @ products
        rests = products - torch.as_tensor(values).to(vectors)[:, None] * vectors
        errors = np.array([norm(rest) for rest in rests])
        return values, vectors, errors / np.maximum(np.abs(values), np.finfo(float).tiny)

    @staticmethod
    def _apart(vector: Tensor, others: list[Tensor]) -> Tensor:
        for other in others:
            vector = vector - dot(other, vector) * other
        return vector / norm(vector)


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


Solver = Literal["lanczos", "power"]


def top_eigenpairs(
    op: Operator,
    k: int = 1,
    tol: float = 1e-3,
    *,
    which: Which = "largest",
    solver: Solver = "lanczos",
    max_products: int = 300,
    seed: int = 0,
) -> EigenResult:
    """The k largest (or most negative) eigenvalues of H and their vectors.

    Args:
        op: A `HessianOperator`.
        k: How many.
        tol: Largest residual ||H v - lambda v|| / |lambda| of a converged pair.
        which: largest, or smallest for the most negative ones.
        solver: lanczos (few products, all pairs at once), or power (the paper's; one pair after another).
        max_products: Stop after this many, converged or not.
        seed: Of the start: random for power, random and along the gradient for lanczos.
    """
    if not 1 <= k <= op.space.touched_size:
        raise UserError(f"k must be between 1 and {op.space.touched_size}, not {k}")
    if not tol > 0:
        raise UserError(f"tol must be positive, not {tol}")
    if max_products < k:
        raise UserError(f"{k} eigenpairs take at least {k} products, but at most {max_products} may be spent")
    solve = lanczos if solver == "lanczos" else power_iteration
    return solve(op, k, tol, which, max_products, seed)
