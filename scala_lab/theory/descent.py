"""The theorem's algorithm: normalised descent with one rate per group, against an inner maximiser.

    y_t         with f(x_t, y_t) >= max_y f(x_t, y) - eps
    x_{t+1,i} = x_{t,i} - eta * nu(||x_{t,i}||) * ghat_{t,i} / ||ghat_{t,i}||,    nu(c) = max(L, min(c, U))

with ghat the mean of b stochastic gradients at (x_t, y_t), eta = 1 / (U sqrt(T)) and b = 16 T L^2 Z^2 / U^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scala_lab.theory.problem import MinimaxProblem

Oracle = Callable[[MinimaxProblem, np.ndarray], np.ndarray]
"""From x to an approximate maximiser y."""


@dataclass(frozen=True)
class Descent:
    """The settings of the outer player.

    Attributes:
        steps: T.
        lower: L, the least weight norm that a rate is scaled by.
        upper: U, the largest.
        batch: b, samples per step.
    """

    steps: int
    lower: float
    upper: float
    batch: int

    @property
    def rate(self) -> float:
        """The learning rate eta."""
        return 1 / (self.upper * math.sqrt(self.steps))

    def iterates(
        self,
        problem: MinimaxProblem,
        start: np.ndarray,
        oracle: Oracle,
        kept: np.ndarray,
        chance: np.random.Generator,
    ) -> np.ndarray:
        """x_t at the steps `kept` (sorted), stacked along a new first axis.

        Args:
            problem: What is minimised.
            start: x_0, with any number of leading axes for independent repetitions.
            oracle: The inner player.
            kept: Steps between 0 and T - 1.
            chance: Draws the samples.
        """
        x, found = start.copy(), []
        wanted = set(kept.tolist())
        for step in range(int(kept[-1]) + 1):
            if step in wanted:
                found.append(x.copy())
            noisy = problem.noisy_gradient_x(x, oracle(problem, x), self.batch, chance)
            lengths = np.sqrt((noisy**2).sum(-1, keepdims=True))
            scales = np.clip(np.sqrt((x**2).sum(-1, keepdims=True)), self.lower, self.upper)
            x -= self.rate * scales * noisy / np.maximum(lengths, np.finfo(float).tiny)
        return np.stack(found)


def printed_batch(problem: MinimaxProblem, steps: int, lower: float, upper: float) -> int:
    """The batch size b = 16 T L^2 Z^2 / U^2, at least 1 (the formula itself gives 0 for L = 0).

    The printed Z = max over i, j, t of sigma_i (xhat_ij - x_ij) / (df/dx_ij) is known only after the run, and
    without bound where a coordinate of the gradient crosses 0. Its scale is used: sigma_i / alpha_i, because 2 alpha_i
    (x - xhat) is a gradient of g.
    """
    ratio = float((problem.deviations_H / problem.alphas_H).max())
    return max(1, math.ceil(16 * steps * (lower * ratio / upper) ** 2))
