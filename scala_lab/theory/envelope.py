"""The Moreau envelope of g with one parameter per group, and its gradient, each computed to a stated tolerance.

    g_{1/2alpha}(x) = min_z g(z) + sum_i alpha_i ||x_i - z_i||^2
    gradient_i      = 2 alpha_i (x_i - xhat_i),     xhat the minimiser

Since g + sum_i alpha_i/2 ||x_i||^2 is convex, what is minimised is strongly convex: with modulus 1 in the norm
||z||_alpha^2 = sum_i alpha_i ||z_i||^2. A descent from any start therefore finds xhat, and the gradient left over at z
bounds the distance to it: ||z - xhat||_alpha <= ||gradient||_{1/alpha}.
"""

from __future__ import annotations

import numpy as np

from scala_lab.theory.problem import MinimaxProblem

MOST_STEPS = 2000
"""Far more than the linear rate needs; reaching it means that a constant of the problem is wrong."""


def proximal_point(problem: MinimaxProblem, x: np.ndarray, tol: float = 1e-8) -> np.ndarray:
    """xhat, with ||z - xhat||_alpha <= tol at every point of the batch.

    Accelerated gradient descent in the norm of the groups, whose condition number is that of the sum: at most
    (3 + sum_i a_i / (C K)) with alpha_i = a_i K, from the quadratic (2), f (1) and the maximiser's motion (the rest).
    """
    alphas = problem.alphas_H[:, None]
    spread = problem.scales_H.sum() / (problem.concavity_D.min() * alphas[0, 0] / problem.scales_H[0])
    smoothness = 3 + spread
    momentum = (np.sqrt(smoothness) - 1) / (np.sqrt(smoothness) + 1)
    z, ahead = x.copy(), x.copy()
    for _ in range(MOST_STEPS):
        gradient = problem.worst_gradient(ahead) + 2 * alphas * (ahead - x)
        if np.sqrt((gradient**2 / alphas).sum((-2, -1)).max()) <= tol:
            return ahead
        new = ahead - gradient / (alphas * smoothness)
        z, ahead = new, new + momentum * (new - z)
    raise ArithmeticError(f"no proximal point within {tol} after {MOST_STEPS} steps")


def envelope(problem: MinimaxProblem, x: np.ndarray, tol: float = 1e-8) -> np.ndarray:
    """g_{1/2alpha}(x)."""
    nearest = proximal_point(problem, x, tol)
    return problem.worst_value(nearest) + (problem.alphas_H[:, None] * (x - nearest) ** 2).sum((-2, -1))


def envelope_gradient(problem: MinimaxProblem, x: np.ndarray, tol: float = 1e-8) -> np.ndarray:
    """Its gradient; every point's error is at most 2 sqrt(max alpha_i) * tol in length."""
    return 2 * problem.alphas_H[:, None] * (x - proximal_point(problem, x, tol))
