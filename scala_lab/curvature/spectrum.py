"""The whole spectrum: trace by random probes, density by stochastic Lanczos quadrature, top eigenvalue per layer.

Trace of a Hessian by random probes, with an error bar.

Hutchinson: for probes z of independent signs, E[z' H z] = tr H. The variance of one probe is twice the sum of the
squared off-diagonal entries, most of which belongs to the top eigenvectors. Where these are known, as orthonormal rows
Q with eigenvalues lambda, only the rest is estimated (the deflation of Hutch++):

    tr H = sum lambda + E[y' H y],  y = z - Q'Q z

which is exact in expectation for any orthonormal Q whose lambda are Rayleigh quotients, converged or not.

Spectral density of a Hessian by stochastic Lanczos quadrature.

For a unit probe v, m steps of Lanczos give a matrix T whose eigenvalues theta_i and squared first eigenvector entries
w_i are a quadrature rule: v' f(H) v = sum_i w_i f(theta_i), exact for polynomials up to degree 2m-1. The mean over
random probes estimates tr f(H) / n for any f. The density is that of the nodes, blurred by a Gaussian kernel
of a stated width.

The densest place of a spectrum is at zero: rows of the word table that no sample uses are left out of the touched
dimension that this result is about; `untouched_share` and `full_density` put them back.

Top eigenvalue of each layer's diagonal block: which layers are sharp.

The convergence theorem speaks of one smoothness constant alpha_i per group of parameters and of their ratio
kappa_alpha = max alpha_i / min alpha_i. At a checkpoint, the curvature along layer i alone is bounded by the top
eigenvalue of H_ii, which is taken as alpha_i there (a local value: the theorem's holds everywhere).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from scala_lab.curvature.eigensolvers import (
    EigenResult,
    KrylovBasis,
    Operator,
    Solver,
    dot,
    subtract_projection,
    top_eigenpairs,
)
from scala_lab.curvature.operator import HessianOperator
from scala_lab.errors import UserError
from scala_lab.optim.groups import layer_names

if TYPE_CHECKING:
    import pandas as pd


LEAST_PROBES = 10
"""Probes before the error bar is trusted to stop the search: of fewer, it is often too small by chance."""


@dataclass(frozen=True)
class TraceResult:
    """The trace with its evidence.

    Attributes:
        trace: Estimate of tr H. Rows that no sample touches add nothing, so it is the trace of the full matrix too.
        error: Standard error of the mean over the probes: the truth lies within one error in about 68% of cases,
            within two in 95%.
        samples: z' H z of each probe, plus what was known exactly.
        hvps: Products spent here.
        converged: Whether error <= tol * |trace|.
        tol: The tolerance.
        exact_part: Sum of the eigenvalues that were given; 0 without them.
    """

    trace: float
    error: float
    samples: np.ndarray
    hvps: int
    converged: bool
    tol: float
    exact_part: float = 0.0

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of that level, by Student's t."""
        from scipy.stats import t

        reach = float(t.ppf(0.5 + level / 2, len(self.samples) - 1)) * self.error
        return self.trace - reach, self.trace + reach


def trace(
    op: Operator,
    tol: float = 0.05,
    max_products: int = 100,
    seed: int = 0,
    *,
    known: EigenResult | None = None,
) -> TraceResult:
    """Trace of H; stops when the standard error is within `tol` of the trace, or after `max_products`.

    Args:
        op: A `HessianOperator`.
        tol: Largest standard error over |trace| of a converged result.
        max_products: Most probes; each costs one product.
        seed: Of the probes.
        known: What `top_eigenpairs` found for the same operator: costs no product and takes the share of the
            top eigenvectors out of the error.
    """
    if max_products < 2:
        raise UserError(f"an error bar needs at least 2 probes, not {max_products}")
    if not tol > 0:
        raise UserError(f"tol must be positive, not {tol}")
    rng = torch.Generator().manual_seed(seed)
    exact = float(np.sum(known.eigenvalues)) if known is not None else 0.0
    samples: list[float] = []
    while True:
        probe = random_signs(op, rng)
        if known is not None:
            subtract_projection(probe, known.touched_eigenvectors)
        samples.append(exact + dot(probe, op.multiply(probe)))
        if len(samples) < 2:
            continue
        mean, error = float(np.mean(samples)), float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
        converged = error <= tol * abs(mean)
        if len(samples) >= max_products or (converged and len(samples) >= LEAST_PROBES):
            return TraceResult(mean, error, np.array(samples), len(samples), converged, tol, exact)


def random_signs(op: Operator, rng: torch.Generator) -> Tensor:
    """A touched vector of independent signs (Rademacher), the same on every worker."""
    signs = torch.randint(0, 2, (op.space.touched_size,), generator=rng, dtype=torch.int8)
    return (2 * signs - 1).to(op.device, op.dtype)


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
    rng = torch.Generator().manual_seed(seed)
    rules = [_quadrature(op, steps, rng) for _ in range(probes)]
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


def _quadrature(op: Operator, steps: int, rng: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of one probe."""
    basis = KrylovBasis(op, random_signs(op, rng), room=min(steps, op.space.touched_size) + 1)
    while basis.size < steps and not (basis.size and basis.exhausted):
        basis.extend()
    values, vectors, _ = basis.ritz_pairs()
    return values, vectors[0] ** 2


def gaussian_mixture(grid: np.ndarray, centres: np.ndarray, weights: np.ndarray, width: float) -> np.ndarray:
    """Sum of normal densities of one width, at the points of the grid."""
    distances = (grid[:, None] - centres[None, :]) / width
    return np.exp(-0.5 * distances**2) @ weights / (width * np.sqrt(2 * np.pi))


@dataclass(frozen=True)
class LayerResult:
    """One block per layer, each with its evidence.

    Attributes:
        names: embeddings, the numbered blocks by the start of their parameters' names, head.
        eigenvalues: alpha_i, the top eigenvalue of each H_ii.
        residuals: ||H_ii v - alpha_i v|| / |alpha_i| of each.
        hvps: Products spent on each; a block's product costs a part of a full one.
        converged: Whether each residual is within the tolerance.
        sizes: Parameters of each block.
    """

    names: tuple[str, ...]
    eigenvalues: np.ndarray
    residuals: np.ndarray
    hvps: np.ndarray
    converged: np.ndarray
    sizes: np.ndarray

    @property
    def kappa_alpha(self) -> float:
        """Largest |alpha_i| over the smallest; infinite if a layer has no curvature at all."""
        sizes = np.abs(self.eigenvalues)
        return float(sizes.max() / sizes.min()) if sizes.min() > 0 else float("inf")

    def frame(self) -> pd.DataFrame:
        """One row per layer: layer, eigenvalue, residual, hvps, converged, parameters."""
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": self.names,
                "eigenvalue": self.eigenvalues,
                "residual": self.residuals,
                "hvps": self.hvps,
                "converged": self.converged,
                "parameters": self.sizes,
            }
        )


def layer_eigenvalues(
    op: HessianOperator,
    model: nn.Module,
    tol: float = 1e-3,
    *,
    solver: Solver = "lanczos",
    max_products: int = 300,
    seed: int = 0,
) -> LayerResult:
    """Top eigenvalue of the block of each transformer layer, the embeddings and the head.

    Args:
        op: Over the parameters to be split into layers, all or some; its retained graphs serve every block.
        model: The operator's model.
        tol: Largest residual of a converged block.
        solver: lanczos or power.
        max_products: For each block.
        seed: Of the random start.
    """
    found: dict[str, EigenResult] = {}
    blocks = layer_blocks(op, model)
    for name, parameters in blocks.items():
        block = op.block(parameters)
        found[name] = top_eigenpairs(block, 1, tol, solver=solver, max_products=max_products, seed=seed)
    return LayerResult(
        tuple(found),
        np.array([result.eigenvalues[0] for result in found.values()]),
        np.array([result.residuals[0] for result in found.values()]),
        np.array([result.hvps for result in found.values()]),
        np.array([result.converged for result in found.values()]),
        np.array([result.space.size for result in found.values()]),
    )


def layer_blocks(op: HessianOperator, model: nn.Module) -> dict[str, list[str]]:
    """Parameter names of each layer, of those that the operator is over, in the order of the model."""
    layers = layer_names(model)
    found: dict[str, list[str]] = {}
    for name in op.space.parameters:
        found.setdefault(layers[name], []).append(name)
    return found
