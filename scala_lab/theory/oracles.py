"""Inner players: exact, off by a stated error, or projected gradient ascent of a few steps."""

from __future__ import annotations

import numpy as np

from scala_lab.theory.descent import Oracle
from scala_lab.theory.problem import MinimaxProblem


def off_by(epsilon: float) -> Oracle:
    """A player that gives away exactly eps: f(x, y) = max_y f(x, y) - eps, or less where the box holds no such y.

    It errs always the same way, towards the corner y = (omega, ..., omega), so that its errors do not average out.
    Along the segment y* + s (corner - y*) the loss is s * slope + s^2 * bend / 2 with both terms nonnegative, and s
    solves the quadratic.
    """

    def respond(problem: MinimaxProblem, x: np.ndarray) -> np.ndarray:
        best = problem.best_response(x)
        if epsilon == 0:
            return best
        way = problem.omega - best
        slope = np.maximum(-(problem.gradient_y(x, best) * way).sum(-1), 0)
        bend = (problem.concavity_D * way**2).sum(-1)
        far = 2 * epsilon / np.maximum(slope + np.sqrt(slope**2 + 2 * bend * epsilon), np.finfo(float).tiny)
        return best + np.minimum(far, 1)[..., None] * way

    return respond


def ascent(steps: int) -> Oracle:
    """PGA-T from y_0 = 0 with the lemma's step size 1/S: y <- clip(y + df/dy / S, -omega, omega)."""

    def respond(problem: MinimaxProblem, x: np.ndarray) -> np.ndarray:
        rate = 1 / problem.concavity_D.max()
        y = np.zeros((*x.shape[:-2], x.shape[-1]))
        for _ in range(steps):
            y = np.clip(y + rate * problem.gradient_y(x, y), -problem.omega, problem.omega)
        return y

    return respond
