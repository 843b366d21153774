"""Extreme eigenpairs of a Hessian operator, by the solver asked for."""

from __future__ import annotations

from typing import Literal

from scala_lab.curvature.eigen import EigenResult, Operator, Which
from scala_lab.curvature.lanczos import lanczos
from scala_lab.curvature.power import power_iteration
from scala_lab.errors import UserError

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
