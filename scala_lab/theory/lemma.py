"""The lemma on projected gradient ascent, where it assumes what it needs, and where it does not.

    q(y) = b'y - 1/2 y'Ay,     eigenvalues of A from C to S,     y <- P(y + grad q(y) / S)

For a maximiser y* with grad q(y*)'(y - y*) <= 0 on the set, and P the nearest point of it, convex or not,

    q(y*) - q(y_{t+1})  <=  (S/C - 1) * (q(y*) - q(y_t))

so that S/C < 2 gives an error of eps after C / (2C - S) * log(1/eps) steps. The printed inequality bounds f from
below as for a convex function; for an ascent it must hold of -f, as here.

The sets: `box` (|y_j| <= radius, convex, with part of the constraints active) and `sparse` (at most a quarter of the
coordinates differ from 0: not convex; the maximiser over the whole space lies in it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Projection = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ConcaveQuadratic:
    """One problem with its constraint and its maximiser.

    Attributes:
        A: Positive definite, eigenvalues from C to S.
        b: Linear term.
        S: Smoothness, the largest eigenvalue.
        project: Nearest point of the constraint set.
        best: The maximiser over the set.
    """

    A: np.ndarray
    b: np.ndarray
    S: float
    project: Projection
    best: np.ndarray

    def value(self, y: np.ndarray) -> float:
        """q(y)."""
        return float(self.b @ y - 0.5 * y @ self.A @ y)

    def gap(self, y: np.ndarray) -> float:
        """q(y*) - q(y), without the cancellation of two nearly equal numbers."""
        off = self.best - y
        return float((self.b - self.A @ self.best) @ off + 0.5 * off @ self.A @ off)

    def ascend(self, steps: int) -> np.ndarray:
        """Gaps after 0, 1, ..., `steps` ascents from y_0 = 0 with step size 1/S."""
        y, gaps = np.zeros_like(self.b), []
        for _ in range(steps + 1):
            gaps.append(self.gap(y))
            y = self.project(y + (self.b - self.A @ y) / self.S)
        return np.array(gaps)


def random_quadratic(kind: str, ratio: float, rng: np.random.Generator, width: int = 16) -> ConcaveQuadratic:
    """A problem with C = 1 and S = ratio.

    Args:
        kind: box or sparse.
        ratio: S / C.
        rng: Draws its eigenvectors, its eigenvalues between the two ends, and where the maximiser lies.
        width: Dimensions.
    """
    rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
    values = np.concatenate([[1.0, ratio], rng.uniform(1, ratio, width - 2)])
    A = rotation @ np.diag(values) @ rotation.T
    peak = rng.normal(size=width)
    if kind == "sparse":
        kept = width // 4
        peak = _largest(peak, kept)
        return ConcaveQuadratic(A, A @ peak, ratio, lambda y: _largest(y, kept), peak)
    radius = 0.5
    b = A @ peak
    return ConcaveQuadratic(A, b, ratio, lambda y: np.clip(y, -radius, radius), _box_maximiser(A, b, radius))


def _largest(y: np.ndarray, kept: int) -> np.ndarray:
    """The nearest vector with at most `kept` coordinates that are not 0."""
    result = np.zeros_like(y)
    places = np.argsort(-np.abs(y), kind="stable")[:kept]
    result[places] = y[places]
    return result


def _box_maximiser(A: np.ndarray, b: np.ndarray, radius: float) -> np.ndarray:
    """Exact up to rounding, by an active-set method: with A = R'R, q(y) = const - 1/2 ||Ry - R^-T b||^2."""
    from scipy.linalg import cholesky, solve_triangular
    from scipy.optimize import lsq_linear

    R = cholesky(A)
    found = lsq_linear(R, solve_triangular(R, b, trans="T"), (-radius, radius), method="bvls", tol=1e-15)
    return found.x


@dataclass(frozen=True)
class AscentRates:
    """What repeated ascents showed.

    Attributes:
        gaps: Gaps over the first one, one row per problem; nan once they are rounding.
        factors: Geometric mean of gap_{t+1} / gap_t of each problem.
        worst_factors: Largest of them, of each problem.
        bends: Slope of log gap over the second half of the steps relative to the first half: 1 on a straight line,
            1/3 or less for an error that falls like a power of t.
    """

    gaps: np.ndarray
    factors: np.ndarray
    worst_factors: np.ndarray
    bends: np.ndarray


ROUNDING = 1e-12
"""Relative gaps below this are left out: squares of errors of some 1e-6, where the maximiser itself is rounded."""


def ascent_rates(kind: str, ratio: float, problems: int, steps: int, seed: int = 0) -> AscentRates:
    """Ascend on random problems and fit how the gap shrinks."""
    rng = np.random.default_rng([seed, round(1000 * ratio)])
    rows = np.stack([random_quadratic(kind, ratio, rng).ascend(steps) for _ in range(problems)])
    gaps = rows / rows[:, :1]
    gaps[np.minimum.accumulate(gaps, axis=1) < ROUNDING] = np.nan
    fits = [_fit(row[np.isfinite(row)]) for row in gaps]
    factors, worst, bends = (np.array(column) for column in zip(*fits, strict=True))
    return AscentRates(gaps, factors, worst, bends)


def _fit(gaps: np.ndarray) -> tuple[float, float, float]:
    logs = np.log(gaps)
    changes = np.diff(logs)
    middle = len(changes) // 2
    first, second = changes[:middle].mean(), changes[middle:].mean()
    return float(np.exp(changes.mean())), float(np.exp(changes.max())), float(second / first)
