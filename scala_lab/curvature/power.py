"""Power iteration with deflation, the paper's method.

It finds the eigenvalue of largest magnitude first. When that one has the wrong sign (negative while the largest
is asked for), the iteration starts again with H + s I, s a little more than the magnitude found, and the result says
so. Further pairs are sought orthogonal to those found; since an error in an early vector would stay in all later
ones, values and residuals are those of the best combinations of all vectors (Rayleigh-Ritz), which costs no
further product.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scala_lab.curvature.eigen import EigenResult, Operator, Which, random_start
from scala_lab.curvature.inner_products import dot, inner_products, norm


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
