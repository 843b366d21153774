"""The lemma on projected gradient ascent: problems that satisfy its assumptions, and its rate on them.

    q(y) = b'y - 1/2 y'Ay,     eigenvalues of A from C to S,     y <- P(y + grad q(y) / S)

For a maximiser y* with grad q(y*)'(y - y*) <= 0 on the constraint set and P the projection onto it, convex or not,

    q(y*) - q(y_{t+1})  <=  (S/C - 1) * (q(y*) - q(y_t))

so that S/C < 2 gives an error of eps after C / (2C - S) * log(1/eps) steps. The printed inequality bounds f from
below as for a convex function; for an ascent it must hold of -f, as here.

The sets: `box` (|y_j| <= radius, convex, with part of the constraints active) and `sparse` (at most a quarter of the
coordinates differ from 0: not convex; the maximiser over the whole space lies in it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult


@dataclass(frozen=True)
class ConcaveQuadratic:
    """One problem with its constraint and its maximiser."""

    A: np.ndarray
    b: np.ndarray
    S: float
    project: Callable[[np.ndarray], np.ndarray]  # to the nearest point of the constraint set
    best: np.ndarray  # the maximiser over the set

    def gap(self, y: np.ndarray) -> float:
        """Return q(y*) - q(y), without the cancellation of two nearly equal numbers."""
        off = self.best - y
        return float((self.b - self.A @ self.best) @ off + 0.5 * off @ self.A @ off)

    def ascend(self, steps: int) -> np.ndarray:
        """Return the gaps after 0, 1, ..., `steps` ascents from y_0 = 0 with step size 1/S."""
        y, gaps = np.zeros_like(self.b), []
        for _ in range(steps + 1):
            gaps.append(self.gap(y))
            y = self.project(y + (self.b - self.A @ y) / self.S)
        return np.array(gaps)


WIDTH = 16  # dimensions of the random problems


def random_quadratic(kind: Literal["box", "sparse"], ratio: float, rng: np.random.Generator) -> ConcaveQuadratic:
    """Draw a problem with C = 1 and S = ratio: its eigenvectors, its other eigenvalues, and where the maximum lies."""
    rotation, _ = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))
    values = np.concatenate([[1.0, ratio], rng.uniform(1, ratio, WIDTH - 2)])
    A = rotation @ np.diag(values) @ rotation.T
    peak = rng.normal(size=WIDTH)
    if kind == "sparse":
        count = WIDTH // 4
        peak = _largest(peak, count)
        return ConcaveQuadratic(A, A @ peak, ratio, lambda y: _largest(y, count), peak)
    radius = 0.5
    b = A @ peak
    return ConcaveQuadratic(A, b, ratio, lambda y: np.clip(y, -radius, radius), _box_maximiser(A, b, radius))


def _largest(y: np.ndarray, count: int) -> np.ndarray:
    """Keep the `count` largest coordinates: the nearest vector with at most that many that are not 0."""
    result = np.zeros_like(y)
    top = np.argsort(-np.abs(y), kind="stable")[:count]
    result[top] = y[top]
    return result


def _box_maximiser(A: np.ndarray, b: np.ndarray, radius: float) -> np.ndarray:
    """Solve by an active-set method, exact up to rounding: with A = R'R, q(y) = const - 1/2 ||Ry - R^-T b||^2."""
    from scipy.linalg import cholesky, solve_triangular
    from scipy.optimize import lsq_linear

    R = cholesky(A)
    return lsq_linear(R, solve_triangular(R, b, trans="T"), (-radius, radius), method="bvls", tol=1e-15).x


ROUNDING = 1e-12
"""Relative gaps below this are left out: squares of errors of some 1e-6, where the maximiser itself is rounded."""


def ascent_gaps(
    runs: Sequence[RunResult], *, kind: Literal["box", "sparse"], ratio: float, problems: int, steps: int, seed: int = 0
) -> dict[str, Any]:
    """Measure how the gap of projected gradient ascent shrinks, on random problems with S/C = ratio, without any run.

    The result has of each problem `factor` and `worst_factor`, geometric mean and maximum of gap_{t+1} / gap_t; `bend`,
    the slope of log gap over the second half of the steps relative to the first (1 on a straight line, 1/3 or less for
    an error that falls like a power of t); `left`, the relative gap after the last step, rounding counted as 0. And
    `median_gap` over the steps, relative to the first.
    """
    rng = np.random.default_rng([seed, round(1000 * ratio)])
    rows = np.stack([random_quadratic(kind, ratio, rng).ascend(steps) for _ in range(problems)])
    gaps = rows / rows[:, :1]
    gaps[np.minimum.accumulate(gaps, axis=1) < ROUNDING] = np.nan
    factors, worst, bends = zip(*(_fit(row[np.isfinite(row)]) for row in gaps), strict=True)
    gaps = np.nan_to_num(gaps)
    return {
        "factor": list(factors),
        "worst_factor": list(worst),
        "bend": list(bends),
        "median_gap": np.median(gaps, axis=0).tolist(),
        "left": gaps[:, -1].tolist(),
    }


def _fit(gaps: np.ndarray) -> tuple[float, float, float]:
    """Return mean factor, largest factor and bend of one problem's gaps."""
    changes = np.diff(np.log(gaps))
    middle = len(changes) // 2
    first, second = changes[:middle].mean(), changes[middle:].mean()
    return float(np.exp(changes.mean())), float(np.exp(changes.max())), float(second / first)
