"""Power iteration with deflation, the paper's method.

It finds the eigenvalue of largest magnitude. When that one is negative and the largest is asked for, the
iteration goes on with H + s I, s the magnitude found, and the result says so.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scala_lab.curvature.eigen import EigenResult, Operator, Which, random_start


def power_iteration(op: Operator, k: int, tol: float, which: Which, max_products: int, seed: int) -> EigenResult:
    """Extreme eigenpairs, one after another; see `top_eigenpairs`."""
    sign = 1.0 if which == "largest" else -1.0
    search = _Search(op, sign, tol, max_products)
    for number in range(k):
        search.find(random_start(op, seed + number))
        if search.spent >= max_products:
            break
    order = np.argsort(-sign * np.array(search.values))
    residuals = np.array(search.residuals)[order]
    converged = len(order) == k and bool((residuals <= tol).all())
    return EigenResult(
        np.array(search.values)[order],
        torch.stack(search.vectors)[torch.as_tensor(order.copy())],
        residuals,
        search.spent,
        converged,
        tol,
        op.space,
        search.note,
    )


class _Search:
    """Pairs found so far, and the iteration for the next one orthogonal to them."""

    def __init__(self, op: Operator, sign: float, tol: float, most: int) -> None:
        self.op, self.sign, self.tol, self.most = op, sign, tol, most
        self.values: list[float] = []
        self.vectors: list[Tensor] = []
        self.residuals: list[float] = []
        self.spent = 0
        self.shift = 0.0
        self.note = ""

    def find(self, vector: Tensor) -> None:
        """Iterate v <- (sign * H + shift) v until the residual is within the tolerance."""
        vector = self._apart(vector)
        while True:
            product = self.op.multiply(vector)
            self.spent += 1
            value = float(vector @ product)
            residual = float((product - value * vector).norm()) / max(abs(value), torch.finfo(torch.float32).tiny)
            settled = residual <= self.tol
            if settled and self.sign * value + self.shift < self.shift and self.shift < abs(value):
                self.shift = 1.01 * abs(value)
                self.note = (
                    f"the eigenvalue of largest magnitude is {value:.6g}: went on with a shift of {self.shift:.6g}"
                )
                settled = False
            if settled or self.spent >= self.most:
                self.values.append(value)
                self.vectors.append(vector)
                self.residuals.append(residual)
                return
            vector = self._apart(self.sign * product + self.shift * vector)

    def _apart(self, vector: Tensor) -> Tensor:
        for found in self.vectors:
            vector = vector - (found @ vector) * found
        return vector / vector.norm()
