"""The theorem's algorithm on a nonconvex minimax problem whose every constant and Moreau envelope can be computed.

A nonconvex minimax problem in groups of parameters whose every constant is known.

f(x, y) = sum_i a_i sum_j [ phi(x_ij) + y_j sin(x_ij) ] - 1/2 sum_j c_j y_j^2,     |y_j| <= omega
    phi(u)  = sqrt(1 + u^2) - 1 + bumps * sin(u)^2

Group i is row x_i of x. All groups meet the same y, so they are coupled in g(x) = max_y f(x, y), as the layers of a
network are by its noise. The theorem's assumptions hold as they are printed:

- The gradient of group i depends on x_i and y alone, with Lipschitz constant alpha_i = a_i * (1 + 2 bumps + omega).
  (The printed assumption bounds it by ||x_i - x_i'|| of the same group, which says just that.)
- |df/dx_ij| <= G = max a_i * (1 + bumps + omega).
- f is nonconvex in x: phi has local minima for bumps > 1/2.
- f(x, .) is strongly concave with C = min c_j and smooth with S = max c_j, so that the lemma on the ascent applies.
- Stochastic gradients are unbiased, with E ||noise of group i||^2 = sigma_i^2 / b for b samples. A sample's noise is
  a centred exponential: skewed, so that the mean direction of single samples differs from the direction of the mean.

The Moreau envelope of g with one parameter per group, and its gradient, each computed to a stated tolerance.

g_{1/2alpha}(x) = min_z g(z) + sum_i alpha_i ||x_i - z_i||^2
    gradient_i      = 2 alpha_i (x_i - xhat_i),     xhat the minimiser

Since g + sum_i alpha_i/2 ||x_i||^2 is convex, what is minimised is strongly convex: with modulus 1 in the norm
||z||_alpha^2 = sum_i alpha_i ||z_i||^2. A descent from any start therefore finds xhat, and the gradient left over at z
bounds the distance to it: ||z - xhat||_alpha <= ||gradient||_{1/alpha}.

The theorem's algorithm: normalised descent with one rate per group, against an inner maximiser.

y_t         with f(x_t, y_t) >= max_y f(x_t, y) - eps
    x_{t+1,i} = x_{t,i} - eta * nu(||x_{t,i}||) * ghat_{t,i} / ||ghat_{t,i}||,    nu(c) = max(L, min(c, U))

with ghat the mean of b stochastic gradients at (x_t, y_t), eta = 1 / (U sqrt(T)) and b = 16 T L^2 Z^2 / U^2.

Inner players: exact, off by a stated error, or projected gradient ascent of a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MinimaxProblem:
    """See the module. Arrays have shapes (..., groups H, coordinates D) for x and (..., D) for y.

    Attributes:
        scales_H: a_i.
        concavity_D: c_j.
        omega: Radius of the box that holds y.
        bumps: Depth of phi's local minima.
        noise: sigma_i / a_i.
    """

    scales_H: np.ndarray
    concavity_D: np.ndarray
    omega: float = 1.0
    bumps: float = 1.2
    noise: float = 8.0

    @property
    def alphas_H(self) -> np.ndarray:
        """alpha_i: Lipschitz constants of the groups' gradients."""
        return self.scales_H * (1 + 2 * self.bumps + self.omega)

    @property
    def kappa_alpha(self) -> float:
        """Largest alpha_i over the smallest."""
        return float(self.alphas_H.max() / self.alphas_H.min())

    @property
    def gradient_bound(self) -> float:
        """G: no coordinate of the gradient exceeds it."""
        return float(self.scales_H.max()) * (1 + self.bumps + self.omega)

    @property
    def deviations_H(self) -> np.ndarray:
        """sigma_i: root mean square length of the noise of one sample in each group."""
        return self.noise * self.scales_H

    def value(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """f(x, y)."""
        phi = np.sqrt(1 + x**2) - 1 + self.bumps * np.sin(x) ** 2
        return (self.scales_H @ phi + y * self.pull(x) - 0.5 * self.concavity_D * y**2).sum(-1)

    def gradient_x(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """df/dx."""
        slope = x / np.sqrt(1 + x**2) + self.bumps * np.sin(2 * x) + y[..., None, :] * np.cos(x)
        return self.scales_H[:, None] * slope

    def gradient_y(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """df/dy."""
        return self.pull(x) - self.concavity_D * y

    def pull(self, x: np.ndarray) -> np.ndarray:
        """sum_i a_i sin(x_ij): what draws y_j away from 0."""
        return self.scales_H @ np.sin(x)

    def best_response(self, x: np.ndarray) -> np.ndarray:
        """The maximiser y*(x), in closed form."""
        return np.clip(self.pull(x) / self.concavity_D, -self.omega, self.omega)

    def worst_value(self, x: np.ndarray) -> np.ndarray:
        """g(x) = max_y f(x, y)."""
        return self.value(x, self.best_response(x))

    def worst_gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient of g: that of f at the maximiser, which is unique (Danskin)."""
        return self.gradient_x(x, self.best_response(x))

    def noisy_gradient_x(self, x: np.ndarray, y: np.ndarray, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Mean of `batch` stochastic gradients, drawn at once: a mean of exponentials is a Gamma variable."""
        centred = rng.gamma(batch, 1 / batch, x.shape) - 1
        return self.gradient_x(x, y) + (self.deviations_H[:, None] / np.sqrt(x.shape[-1])) * centred


def grouped_problem(kappa: float, groups: int = 4, width: int = 4, ratio: float = 1.5) -> MinimaxProblem:
    """A problem with alpha_i spread evenly in the logarithm over a factor kappa, largest a_i = 1.

    Args:
        kappa: kappa_alpha, at least 1.
        groups: H.
        width: D; coordinates take turns between c_j = 1 and c_j = ratio.
        ratio: S / C of the inner problem.
    """
    return MinimaxProblem(
        scales_H=np.geomspace(1 / kappa, 1, groups), concavity_D=np.where(np.arange(width) % 2, ratio, 1.0)
    )


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
        rng: np.random.Generator,
    ) -> np.ndarray:
        """x_t at the steps `kept` (sorted), stacked along a new first axis.

        Args:
            problem: What is minimised.
            start: x_0, with any number of leading axes for independent repetitions.
            oracle: The inner player.
            kept: Steps between 0 and T - 1.
            rng: Draws the samples.
        """
        x, found = start.copy(), []
        wanted = set(kept.tolist())
        for step in range(int(kept[-1]) + 1):
            if step in wanted:
                found.append(x.copy())
            noisy = problem.noisy_gradient_x(x, oracle(problem, x), self.batch, rng)
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
