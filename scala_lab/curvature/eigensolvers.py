"""Extreme eigenpairs of a symmetric operator by Lanczos or power iteration.

**When has an eigenvalue converged?** When its residual ||H v - lambda v|| / |lambda| is at most `tol`: see
`EigenResult.converged`. H is symmetric, so an eigenvalue of H lies within that relative distance of lambda, whatever
the solver did to get there. A small change between two iterations is never taken as evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.curvature.loss import ParameterSpace
    from scala_lab.curvature.operator import HessianOperator

Which = Literal["largest", "smallest"]
Solver = Literal["lanczos", "power"]

GUESS_DOUBT = 0.01
"""Size of the random part of a start from a guess."""

CHUNK = 1 << 13
"""Numbers summed in float32 at a time: the error is some 1e-6 of the lengths' product, the cost that of one sum."""


@dataclass(frozen=True)
class EigenResult:
    """Eigenpairs with their residuals, and the number of Hessian-vector products that they took."""

    eigenvalues: np.ndarray  # largest first, or most negative first
    touched_eigenvectors: Tensor  # unit vectors as rows; `eigenvectors` has them over all parameters
    residuals: np.ndarray  # ||H v - lambda v|| / |lambda| of each pair
    hvps: int
    tol: float  # largest residual of a converged pair
    space: ParameterSpace
    note: str = ""  # what a reader should know, such as a shift that was needed

    @property
    def converged(self) -> bool:
        """Whether the residual of every pair is at most `tol`."""
        return bool((self.residuals <= self.tol).all())

    @property
    def eigenvectors(self) -> Tensor:
        """Unit vectors over all parameters, one per row."""
        return self.space.full(self.touched_eigenvectors)

    def first(self) -> dict[str, Any]:
        """Return the first eigenvalue with its evidence, ready for JSON."""
        value, residual = float(self.eigenvalues[0]), float(self.residuals[0])
        return {"eigenvalue": value, "residual": residual, "converged": self.converged}

    def record(self) -> dict[str, Any]:
        """Return all but the vectors, ready for JSON."""
        return {
            "eigenvalues": self.eigenvalues.tolist(),
            "residuals": self.residuals.tolist(),
            "hvps": self.hvps,
            "converged": self.converged,
        }


def top_eigenpairs(
    op: HessianOperator,
    k: int = 1,
    tol: float = 1e-3,
    *,
    which: Which = "largest",
    solver: Solver = "lanczos",
    max_products: int = 300,
    seed: int = 0,
    start: Tensor | None = None,
) -> EigenResult:
    """Compute the k largest eigenvalues of H, or smallest (most negative) ones, and their eigenvectors.

    A pair has converged if its residual ||H v - lambda v|| / |lambda| is at most `tol`; the solver stops after
    `max_products` in any case. `lanczos` takes few products for all pairs at once; `power`, the paper's solver, finds
    one pair after another. The start vector is random by `seed`, for Lanczos in part the gradient. Lanczos takes a
    guess of the first eigenvector as `start`, over the touched parameters, such as that of the same model a few steps
    before: `touched_eigenvectors[0]`.
    """
    if not 1 <= k <= op.space.touched_size:
        raise UserError(f"k must be between 1 and {op.space.touched_size}, not {k}")
    if not tol > 0:
        raise UserError(f"tol must be positive, not {tol}")
    if max_products < k:
        raise UserError(f"{k} eigenpairs take at least {k} products, but at most {max_products} may be spent")
    if solver == "lanczos":
        return lanczos(op, k, tol, which, max_products, seed, start)
    if start is not None:
        raise UserError("a guess of the eigenvector is for solver lanczos")
    return power_iteration(op, k, tol, which, max_products, seed)


def lanczos(
    op: HessianOperator,
    k: int,
    tol: float,
    which: Which,
    max_products: int,
    seed: int,
    guess: Tensor | None = None,
) -> EigenResult:
    """Lanczos from a start of equal parts gradient and random vector, or from a guess; see `top_eigenpairs`.

    In trained networks the gradient lies among the top eigenvectors, which saves a product or two in 24. The random
    part keeps every eigenvector within reach; beside a guess it is a hundredth.
    """
    start = random_start(op, seed)
    if guess is not None:
        start = guess.to(start) / norm(guess) + GUESS_DOUBT * start
    else:
        gradient = op.gradient()
        length = norm(gradient)
        if 0 < length < float("inf"):
            start += gradient / length
    basis = KrylovBasis(op, start)
    while True:
        basis.extend()
        values, vectors, errors = basis.ritz_pairs()
        order = np.argsort(-values if which == "largest" else values)[:k]
        residuals = _relative(errors[order], values[order])
        complete = len(order) == k
        if basis.size >= max_products or (complete and (basis.exhausted or (residuals <= tol).all())):
            break
        if basis.exhausted:  # a multiple eigenvalue shows once in each invariant subspace
            basis.restart(random_start(op, seed + basis.size))
    return EigenResult(values[order], basis.combine(vectors[:, order]), residuals, basis.size, tol, op.space)


def random_start(op: HessianOperator, seed: int) -> Tensor:
    """Draw a random unit vector, the same on every worker."""
    rng = torch.Generator().manual_seed(seed)
    start = torch.randn(op.space.touched_size, generator=rng, dtype=torch.float32).to(op.device, op.dtype)
    return start / norm(start)


def _relative(errors: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Residuals ||H v - lambda v|| / |lambda| from ||H v - lambda v|| and lambda."""
    return errors / np.maximum(np.abs(values), np.finfo(float).tiny)


class KrylovBasis:
    """Lanczos with full reorthogonalisation: orthonormal vectors V that grow by one product at a time.

    After m products H V_m = V_m T_m + beta_m v_{m+1} e_m^T with tridiagonal T_m. An eigenpair (theta, s) of T_m gives
    the pair (theta, V_m s) of H with ||H x - theta x|| = |beta_m s_m|, known without a further product. Every new
    vector is orthogonalised against all earlier ones, a second time where the first took away a good part of it (Kahan
    and Parlett: twice is enough), which keeps V_m orthonormal to rounding: no eigenvalue appears twice, and the
    residual formula stays true.

    The vectors are rows of blocks, so that orthogonalising is a few matrix-vector products and growing copies nothing.
    """

    def __init__(self, op: HessianOperator, start: Tensor, block_rows: int = 16) -> None:
        self.op, self.block_rows = op, block_rows
        self.blocks: list[Tensor] = []
        self.alphas: list[float] = []
        self.betas: list[float] = []
        self._append(start / norm(start))

    @property
    def size(self) -> int:
        """Vectors that have been multiplied."""
        return len(self.alphas)

    @property
    def exhausted(self) -> bool:
        """Whether the vectors span an invariant subspace, so that there is nothing to add."""
        scale = max(map(abs, self.alphas)) + max(self.betas[:-1], default=0.0)
        epsilon = torch.finfo(self.op.dtype).eps
        return self.size >= self.blocks[0].shape[1] or self.betas[-1] <= 10 * epsilon * max(scale, 1e-30)

    def extend(self) -> None:
        """Multiply the newest vector and orthogonalise the result against all."""
        newest = self._row(self.size)
        new = self.op.multiply(newest)
        self.alphas.append(dot(newest, new))
        new.sub_(newest, alpha=self.alphas[-1])
        if self.betas:
            new.sub_(self._row(self.size - 2), alpha=self.betas[-1])
        before = norm(new)
        self._orthogonalise(new)
        self.betas.append(norm(new))
        if self.betas[-1] < 0.7 * before:
            self._orthogonalise(new)
            self.betas[-1] = norm(new)
        if not self.exhausted:
            self._append(new.div_(self.betas[-1]))

    def restart(self, start: Tensor) -> None:
        """Continue outside an exhausted subspace, from the part of a vector that is orthogonal to it."""
        start = start.clone()
        for _ in range(2):
            self._orthogonalise(start)
        self.betas[-1] = 0.0
        self._append(start.div_(norm(start)))

    def ritz_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return T's eigenvalues ascending, eigenvectors as columns, and errors |beta_m s_m|, at least eps * ||T||."""
        values, vectors = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas[:-1]))
        rounding = torch.finfo(self.op.dtype).eps * np.abs(values).max()
        return values, vectors, np.maximum(abs(self.betas[-1] * vectors[-1]), rounding)

    def combine(self, coefficients: np.ndarray) -> Tensor:
        """Return unit vectors V s, one per row, for coefficients s as columns."""
        weights = torch.as_tensor(coefficients.T.copy()).to(self.blocks[0])
        combined = weights.new_zeros(len(weights), self.blocks[0].shape[1])
        for part, rows in zip(weights.split(self.block_rows, dim=1), self._multiplied_rows(), strict=False):
            combined.addmm_(part, rows)
        for vector in combined:
            vector /= norm(vector)
        return combined

    def _orthogonalise(self, vector: Tensor) -> None:
        for rows in self._multiplied_rows():
            subtract_projection(vector, rows)

    def _append(self, vector: Tensor) -> None:
        if self.size == self.block_rows * len(self.blocks):
            self.blocks.append(vector.new_empty(self.block_rows, len(vector)))
        self._row(self.size).copy_(vector)

    def _row(self, index: int) -> Tensor:
        return self.blocks[index // self.block_rows][index % self.block_rows]

    def _multiplied_rows(self) -> list[Tensor]:
        """The vectors that have been multiplied, block by block."""
        return [block[: max(0, self.size - number * self.block_rows)] for number, block in enumerate(self.blocks)]


def power_iteration(op: HessianOperator, k: int, tol: float, which: Which, max_products: int, seed: int) -> EigenResult:
    """Power iteration with deflation, the paper's method; see `top_eigenpairs`.

    It finds the eigenvalue of largest magnitude first. When that one has the wrong sign (negative while the largest is
    requested), it starts again with H + s I, s a little more than that magnitude, and the result's note says so.
    An error in an early vector would stay in all later ones, which are orthogonal to it, so values and residuals are
    those of the best combinations of all vectors (Rayleigh-Ritz), without further products.
    """
    sign = 1.0 if which == "largest" else -1.0
    vectors: list[Tensor] = []
    products: list[Tensor] = []
    spent, shift, note = 0, 0.0, ""
    for index in range(k):
        later_pairs = k - index - 1
        start = random_start(op, seed + index)
        vector, first = _orthogonalised(start, vectors), None
        while True:
            product = op.multiply(vector)
            spent += 1
            first = first or (vector, product)
            residuals = _ritz_pairs([*vectors, vector], [*products, product], sign)[2]
            converged, value = bool((residuals <= tol).all()), dot(vector, product)
            wrong_sign = converged and sign * value < 0 and shift < abs(value)
            if spent >= max_products - later_pairs or (converged and not wrong_sign):
                break
            if wrong_sign:
                shift = 1.01 * abs(value)
                note = f"the eigenvalue of largest magnitude is {value:.6g}: shifted by {shift:.6g}"
                vector = _orthogonalised(start, vectors)
            else:
                vector = _orthogonalised(sign * product + shift * vector, vectors)
        if wrong_sign:  # no product is left to look for the right one
            vector, product = first
        vectors.append(vector)
        products.append(product)
    values, best, residuals = _ritz_pairs(vectors, products, sign)
    return EigenResult(values, best, residuals, spent, tol, op.space, note)


def _ritz_pairs(vectors: list[Tensor], products: list[Tensor], sign: float) -> tuple[np.ndarray, Tensor, np.ndarray]:
    """Return values in the requested order, unit vectors as rows, and residuals."""
    V, HV = torch.stack(vectors), torch.stack(products)
    small = inner_products(V, HV).cpu().numpy()
    values, rotation = np.linalg.eigh((small + small.T) / 2)
    order = np.argsort(-sign * values)
    values = values[order]
    weights = torch.as_tensor(rotation[:, order].T.copy()).to(V)
    V, HV = weights @ V, weights @ HV
    rests = HV - torch.as_tensor(values).to(V)[:, None] * V
    return values, V, _relative(np.array([norm(rest) for rest in rests]), values)


def _orthogonalised(vector: Tensor, others: list[Tensor]) -> Tensor:
    for other in others:
        vector = vector - dot(other, vector) * other
    return vector / norm(vector)


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Return <row of left, row of right> of each pair of rows, in float64.

    torch sums a long float32 product in float32, where most entries of an eigenvector are lost on the much larger sum
    so far. On an encoder of 5.7M touched parameters the norm of a top eigenvector came out 0.12% short, a matrix-vector
    product 0.4%, more than any tolerance in use. Here chunks are summed in float32 and added in float64.
    """
    whole = left.shape[1] // CHUNK * CHUNK
    parts, others = (rows[:, :whole].unflatten(1, (-1, CHUNK)).transpose(0, 1) for rows in (left, right))
    total = torch.bmm(parts, others.transpose(1, 2)).sum(0, dtype=torch.float64)
    return total + left[:, whole:] @ right[:, whole:].T


def dot(left: Tensor, right: Tensor) -> float:
    """Return <left, right> of two vectors."""
    return float(inner_products(left[None], right[None]))


def norm(vector: Tensor) -> float:
    """Return the Euclidean length."""
    return dot(vector, vector) ** 0.5


def subtract_projection(vector: Tensor, orthonormal: Tensor) -> None:
    """Make a vector orthogonal to orthonormal rows, in place, to the rounding of its length before."""
    shares = inner_products(orthonormal, vector[None])[:, 0].to(vector.dtype)
    vector.addmv_(orthonormal.T, shares, alpha=-1)
