"""The theorem's algorithm on a nonconvex minimax problem whose constants and Moreau envelope can all be computed.

    f(x, y) = sum_i a_i sum_j [ phi(x_ij) + y_j sin(x_ij) ] - 1/2 sum_j c_j y_j^2,     |y_j| <= omega
    phi(u)  = sqrt(1 + u^2) - 1 + bumps * sin(u)^2

Group i is row x_i of x. All groups share y, which couples them in g(x) = max_y f(x, y) as noise couples the layers of a
network. The theorem's assumptions hold as printed:

- The gradient of group i depends on x_i and y alone, with Lipschitz constant alpha_i = a_i * (1 + 2 bumps + omega).
- |df/dx_ij| <= G = max a_i * (1 + bumps + omega).
- f is nonconvex in x: phi has local minima for bumps > 1/2.
- f(x, .) is strongly concave with C = min c_j and smooth with S = max c_j, so that the lemma on the ascent applies.
- Stochastic gradients are unbiased, with E ||noise of group i||^2 = sigma_i^2 / b for b samples. The noise of a sample
  is a centred exponential: skewed, so that the mean direction of single samples is not the direction of the mean.

The algorithm, with ghat the mean of b = 16 T L^2 Z^2 / U^2 stochastic gradients at (x_t, y_t), eta = 1 / (U sqrt(T)):

    y_t         with f(x_t, y_t) >= max_y f(x_t, y) - eps
    x_{t+1,i} = x_{t,i} - eta * nu(||x_{t,i}||) * ghat_{t,i} / ||ghat_{t,i}||,    nu(c) = max(L, min(c, U))

The Moreau envelope of g, with one parameter per group:

    g_{1/2alpha}(x) = min_z g(z) + sum_i alpha_i ||x_i - z_i||^2,     gradient_i = 2 alpha_i (x_i - xhat_i)

g + sum_i alpha_i/2 ||x_i||^2 is convex, so the objective in z is strongly convex with modulus 1 in the norm
||z||_alpha^2 = sum_i alpha_i ||z_i||^2: descent from any start reaches the minimiser xhat, and the gradient at z bounds
the distance to it, ||z - xhat||_alpha <= ||gradient||_{1/alpha}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult


@dataclass(frozen=True)
class MinimaxProblem:
    """The problem above; x has shape (..., groups H, coordinates D), y has shape (..., D)."""

    scales_H: np.ndarray  # a_i
    concavity_D: np.ndarray  # c_j
    omega: float = 1.0
    bumps: float = 1.2
    noise: float = 8.0  # sigma_i / a_i

    @property
    def alphas_H(self) -> np.ndarray:
        """alpha_i: Lipschitz constants of the groups' gradients."""
        return self.scales_H * (1 + 2 * self.bumps + self.omega)

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
        return (self.scales_H @ phi + y * self.coupling(x) - 0.5 * self.concavity_D * y**2).sum(-1)

    def gradient_x(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """df/dx."""
        slope = x / np.sqrt(1 + x**2) + self.bumps * np.sin(2 * x) + y[..., None, :] * np.cos(x)
        return self.scales_H[:, None] * slope

    def gradient_y(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """df/dy."""
        return self.coupling(x) - self.concavity_D * y

    def coupling(self, x: np.ndarray) -> np.ndarray:
        """sum_i a_i sin(x_ij), the linear coefficient of y_j."""
        return self.scales_H @ np.sin(x)

    def best_response(self, x: np.ndarray) -> np.ndarray:
        """The maximiser y*(x), in closed form."""
        return np.clip(self.coupling(x) / self.concavity_D, -self.omega, self.omega)

    def worst_value(self, x: np.ndarray) -> np.ndarray:
        """g(x) = max_y f(x, y)."""
        return self.value(x, self.best_response(x))

    def worst_gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient of g: that of f at the maximiser, which is unique (Danskin)."""
        return self.gradient_x(x, self.best_response(x))

    def noisy_gradient_x(self, x: np.ndarray, y: np.ndarray, batch: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the mean of `batch` stochastic gradients at once: a mean of exponentials is a Gamma variable."""
        centred = rng.gamma(batch, 1 / batch, x.shape) - 1
        return self.gradient_x(x, y) + (self.deviations_H[:, None] / np.sqrt(x.shape[-1])) * centred


def grouped_problem(kappa: float) -> MinimaxProblem:
    """Return a problem with max alpha_i / min alpha_i = kappa, even in the logarithm, and S / C = 1.5; H = D = 4."""
    return MinimaxProblem(scales_H=np.geomspace(1 / kappa, 1, 4), concavity_D=np.array([1.0, 1.5, 1.0, 1.5]))


MAX_STEPS = 2000  # far more than the linear rate needs: reaching it means that a constant of the problem is wrong


def proximal_point(problem: MinimaxProblem, x: np.ndarray, tol: float = 1e-8) -> np.ndarray:
    """Return xhat to ||z - xhat||_alpha <= tol, for every point of a batch.

    Accelerated gradient descent in the norm of the groups, whose condition number is that of the sum: at most
    (3 + sum_i a_i / (C K)) with alpha_i = a_i K, from the quadratic (2), f (1) and the maximiser's motion (the rest).
    """
    alphas = problem.alphas_H[:, None]
    smoothness = 3 + problem.scales_H.sum() / (problem.concavity_D.min() * alphas[0, 0] / problem.scales_H[0])
    momentum = (np.sqrt(smoothness) - 1) / (np.sqrt(smoothness) + 1)
    z, ahead = x.copy(), x.copy()
    for _ in range(MAX_STEPS):
        gradient = problem.worst_gradient(ahead) + 2 * alphas * (ahead - x)
        if np.sqrt((gradient**2 / alphas).sum((-2, -1)).max()) <= tol:
            return ahead
        new = ahead - gradient / (alphas * smoothness)
        z, ahead = new, new + momentum * (new - z)
    raise ArithmeticError(f"no proximal point within {tol} after {MAX_STEPS} steps")


def envelope(problem: MinimaxProblem, x: np.ndarray, tol: float = 1e-8) -> np.ndarray:
    """Return g_{1/2alpha}(x)."""
    nearest = proximal_point(problem, x, tol)
    return problem.worst_value(nearest) + (problem.alphas_H[:, None] * (x - nearest) ** 2).sum((-2, -1))


def envelope_gradient(problem: MinimaxProblem, x: np.ndarray, tol: float = 1e-8) -> np.ndarray:
    """Return the gradient of the envelope; every point's error is at most 2 sqrt(max alpha_i) * tol in length."""
    return 2 * problem.alphas_H[:, None] * (x - proximal_point(problem, x, tol))


Oracle = Callable[[MinimaxProblem, np.ndarray], np.ndarray]  # from x to an approximate maximiser y


def descend(
    problem: MinimaxProblem,
    x: np.ndarray,
    oracle: Oracle,
    steps: int,
    lower: float,
    upper: float,
    batch: int,
    record_at: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Run the theorem's algorithm and return x_t at the sorted steps `record_at`, stacked along a new first axis.

    x is x_0, with any number of leading axes for independent replicas. `steps`, `lower`, `upper` and `batch` are T, L,
    U and b.
    """
    eta, recorded, iterates = 1 / (upper * math.sqrt(steps)), set(record_at.tolist()), []
    x = x.copy()
    for step in range(int(record_at[-1]) + 1):
        if step in recorded:
            iterates.append(x.copy())
        gradient = problem.noisy_gradient_x(x, oracle(problem, x), batch, rng)
        norms = np.sqrt((gradient**2).sum(-1, keepdims=True))
        nu = np.clip(np.sqrt((x**2).sum(-1, keepdims=True)), lower, upper)
        x -= eta * nu * gradient / np.maximum(norms, np.finfo(float).tiny)
    return np.stack(iterates)


def printed_batch(problem: MinimaxProblem, steps: int, lower: float, upper: float) -> int:
    """The batch size b = 16 T L^2 Z^2 / U^2, at least 1 (the formula itself gives 0 for L = 0).

    The printed Z = max over i, j, t of sigma_i (xhat_ij - x_ij) / (df/dx_ij) is known only after the run and unbounded
    where a coordinate of the gradient crosses 0. Its scale sigma_i / alpha_i takes its place: 2 alpha_i (x - xhat) is a
    gradient of g.
    """
    ratio = float((problem.deviations_H / problem.alphas_H).max())
    return max(1, math.ceil(16 * steps * (lower * ratio / upper) ** 2))


def off_by(epsilon: float) -> Oracle:
    """Return an inner player with error exactly eps: f(x, y) = max_y f(x, y) - eps, or less where the box is too small.

    It always errs towards the corner y = (omega, ..., omega), so that errors do not average out. Along the segment
    y* + s (corner - y*) the error is s * slope + s^2 * curvature / 2, both terms nonnegative; s solves the quadratic.
    """

    def respond(problem: MinimaxProblem, x: np.ndarray) -> np.ndarray:
        best = problem.best_response(x)
        if epsilon == 0:
            return best
        segment = problem.omega - best
        slope = np.maximum(-(problem.gradient_y(x, best) * segment).sum(-1), 0)
        curvature = (problem.concavity_D * segment**2).sum(-1)
        root = np.sqrt(slope**2 + 2 * curvature * epsilon)
        s = 2 * epsilon / np.maximum(slope + root, np.finfo(float).tiny)
        return best + np.minimum(s, 1)[..., None] * segment

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


START_NORM = 6.0  # length of every group of x_0: a few units of phi's bumps away from the global minimum
POINTS = 64  # iterates of a run at which the envelope's gradient is computed, spread evenly at random over its T steps


def envelope_gradients(
    runs: Sequence[RunResult],
    *,
    steps: Sequence[int],
    replicas: int,
    kappa: float = 4.0,
    epsilon: float = 0.0,
    ascent_steps: int = 0,
    lower: float = 4.0,
    upper: float = 8.0,
    batch: Literal["growing", "one"] = "growing",
    seed: int = 0,
) -> dict[str, Any]:
    """Measure E ||grad g_{1/2alpha}(xbar)||^2 for several T, xbar uniform among the iterates of a run of T steps.

    Replica r has the same x_0 and the same noise under every setting, so that settings can be compared in pairs. With
    `ascent_steps` the inner player is PGA with that many steps, else one with error `epsilon`. The batch grows with T
    as the theorem says, or is one sample per step. The result has for each T `squared_gradient_T`, a list over
    replicas, and `bound_T`, the printed right side; `steps`, `batches`, `gap` (D, its mean over the starts),
    `gradient_bound` (G) and `largest_alpha`.
    """
    problem = grouped_problem(kappa)
    inner = ascent(ascent_steps) if ascent_steps else off_by(epsilon)
    start = np.random.default_rng([seed, 0]).normal(size=(replicas, len(problem.scales_H), len(problem.concavity_D)))
    start *= START_NORM / np.linalg.norm(start, axis=-1, keepdims=True)
    gap = float(envelope(problem, start).mean())  # min g = g(0) = 0, since phi >= 0 and y = 0 is allowed
    G, alpha = problem.gradient_bound, float(problem.alphas_H.max())
    result: dict[str, Any] = {"steps": list(steps), "batches": []}
    result |= {"gap": gap, "gradient_bound": G, "largest_alpha": alpha}
    for T in steps:
        rng = np.random.default_rng([seed, T])
        size = printed_batch(problem, T, lower, upper) if batch == "growing" else 1
        iterates = descend(problem, start, inner, T, lower, upper, size, _stratified_steps(T, rng), rng)
        squares = (envelope_gradient(problem, iterates, tol=1e-6) ** 2).sum((-2, -1))
        result["batches"].append(size)
        result[f"squared_gradient_{T}"] = squares.mean(0).tolist()
        result[f"bound_{T}"] = 4 * epsilon * alpha + 2 * kappa * gap * G / np.sqrt(T)
    return result


def _stratified_steps(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw one step uniformly from each of equal parts of 0 .. T - 1, so that the mean over them is unbiased."""
    parts = min(POINTS, steps)
    return np.unique(((np.arange(parts) + rng.random(parts)) * steps / parts).astype(int))
