"""Extreme eigenpairs of a Hessian operator, each with the evidence that it is one.

Every result carries the residual ||H v - lambda v|| / |lambda| of each pair, the number of products and whether all
residuals are within the tolerance. A result always has the number of pairs that was asked for, so one that has not
converged shows it by a residual above the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from scala_lab.curvature.space import ParameterSpace
from scala_lab.errors import UserError

Which = Literal["largest", "smallest"]
Solver = Literal["lanczos", "power"]


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
        return torch.stack([self.space.full(vector) for vector in self.touched_eigenvectors])


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
        seed: Of the random start.
    """
    if not 1 <= k <= op.space.touched_size:
        raise UserError(f"k must be between 1 and {op.space.touched_size}, not {k}")
    if not tol > 0:
        raise UserError(f"tol must be positive, not {tol}")
    if max_products < k:
        raise UserError(f"{k} eigenpairs take at least {k} products, but at most {max_products} may be spent")
    from scala_lab.curvature.lanczos import lanczos
    from scala_lab.curvature.power import power_iteration

    solve = lanczos if solver == "lanczos" else power_iteration
    return solve(op, k, tol, which, max_products, seed)


def random_start(op: Operator, seed: int) -> Tensor:
    """A random unit vector, the same on every worker."""
    chance = torch.Generator().manual_seed(seed)
    start = torch.randn(op.space.touched_size, generator=chance, dtype=torch.float32).to(op.device, op.dtype)
    return start / start.norm()
