"""Spectral density of a Hessian by stochastic Lanczos quadrature.

For a unit probe v, m steps of Lanczos give a matrix T whose eigenvalues theta_i and squared first eigenvector entries
w_i are a quadrature rule: v' f(H) v = sum_i w_i f(theta_i), exact for polynomials up to degree 2m-1. The mean over
random probes estimates tr f(H) / n for any f. The density is that of the nodes, blurred by a Gaussian kernel
of a stated width.

The densest place of a spectrum is at zero: rows of the word table that no sample uses are left out of the touched
dimension that this result is about; `untouched_share` and `full_density` put them back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from scala_lab.curvature.eigen import Operator
from scala_lab.curvature.lanczos import KrylovBasis
from scala_lab.curvature.trace import random_signs
from scala_lab.errors import UserError

MARGIN = 6.0
"""Kernel widths that the grid reaches beyond the outermost nodes: less than 1e-8 of the mass lies outside."""


@dataclass(frozen=True)
class DensityResult:
    """Density of the eigenvalues with the quadrature it was made from.

    Attributes:
        grid: Where the density is given, evenly spaced.
        density: Of the eigenvalues of H on the touched dimensions; integrates to 1.
        nodes: Quadrature nodes of all probes.
        weights: Their weights; they sum to 1.
        probe_of: Which probe each node belongs to.
        width: Standard deviation of the Gaussian kernel, in units of the eigenvalues.
        hvps: Products spent.
        touched_size: Dimensions that this is about.
        full_size: Dimensions of the full matrix; the others have eigenvalue exactly 0.
    """

    grid: np.ndarray
    density: np.ndarray
    nodes: np.ndarray
    weights: np.ndarray
    probe_of: np.ndarray
    width: float
    hvps: int
    touched_size: int
    full_size: int

    @property
    def untouched_share(self) -> float:
        """Share of the full matrix's eigenvalues that are 0 because no sample touches their row."""
        return 1 - self.touched_size / self.full_size

    @property
    def full_density(self) -> np.ndarray:
        """Density of the full matrix's eigenvalues on the grid, the untouched zeros blurred like all others."""
        zeros = gaussian_mixture(self.grid, np.zeros(1), np.ones(1), self.width)
        return (1 - self.untouched_share) * self.density + self.untouched_share * zeros

    def moment(self, power: int) -> tuple[float, float]:
        """tr(H^power) / n on the touched dimensions, and its standard error over the probes (nan for one probe).

        Not blurred: of the nodes themselves.
        """
        parts = self.weights * self.nodes**power
        probes = int(self.probe_of.max()) + 1
        means = probes * np.bincount(self.probe_of, parts, probes)
        error = float(np.std(means, ddof=1) / np.sqrt(probes)) if probes > 1 else float("nan")
        return float(np.mean(means)), error


def spectral_density(
    op: Operator,
    probes: int = 4,
    steps: int = 50,
    seed: int = 0,
    *,
    width: float | None = None,
    points: int = 1001,
) -> DensityResult:
    """Density of H's eigenvalues; costs at most probes * steps products and memory for `steps` vectors.

    Args:
        op: A `HessianOperator`.
        probes: Random vectors; more make the weights of the bulk more exact.
        steps: Lanczos steps for each; more resolve the spectrum more finely.
        seed: Of the probes.
        width: Standard deviation of the Gaussian kernel; default a hundredth of the range of the nodes.
        points: Of the grid; raised where the kernel is too narrow for them.
    """
    if probes < 1 or steps < 2:
        raise UserError(f"a density needs at least 1 probe and 2 steps, not {probes} and {steps}")
    if width is not None and not width > 0:
        raise UserError(f"the kernel's width must be positive, not {width}")
    chance = torch.Generator().manual_seed(seed)
    rules = [_quadrature(op, steps, chance) for _ in range(probes)]
    nodes = np.concatenate([values for values, _ in rules])
    weights = np.concatenate([shares for _, shares in rules]) / probes
    probe_of = np.repeat(np.arange(probes), [len(values) for values, _ in rules])
    if width is None:
        spread = float(np.ptp(nodes)) or float(np.abs(nodes).max()) or 1.0
        width = spread / 100
    low, high = nodes.min() - MARGIN * width, nodes.max() + MARGIN * width
    grid = np.linspace(low, high, max(points, int(np.ceil(4 * (high - low) / width)) + 1))
    density = gaussian_mixture(grid, nodes, weights, width)
    return DensityResult(
        grid, density, nodes, weights, probe_of, width, len(nodes), op.space.touched_size, op.space.size
    )


def _quadrature(op: Operator, steps: int, chance: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of one probe."""
    basis = KrylovBasis(op, random_signs(op, chance), room=min(steps, op.space.touched_size) + 1)
    while basis.size < steps and not (basis.size and basis.exhausted):
        basis.extend()
    values, vectors, _ = basis.ritz_pairs()
    return values, vectors[0] ** 2


def gaussian_mixture(grid: np.ndarray, centres: np.ndarray, weights: np.ndarray, width: float) -> np.ndarray:
    """Sum of normal densities of one width, at the points of the grid."""
    distances = (grid[:, None] - centres[None, :]) / width
    return np.exp(-0.5 * distances**2) @ weights / (width * np.sqrt(2 * np.pi))
