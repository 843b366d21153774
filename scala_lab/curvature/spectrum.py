"""The spectrum beyond its ends: trace by random probes, density by Lanczos quadrature, top eigenvalue per layer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from scala_lab.curvature.eigensolvers import EigenResult, KrylovBasis, dot, subtract_projection, top_eigenpairs
from scala_lab.curvature.operator import HessianOperator
from scala_lab.errors import UserError
from scala_lab.optim.build import layer_names

MIN_PROBES = 10  # probes before the error bar may stop the search: with fewer, it is often too small by chance
MARGIN = 6.0  # kernel widths that the grid reaches beyond the outermost nodes: less than 1e-8 of the mass lies outside


@dataclass(frozen=True)
class TraceResult:
    """An estimate of tr H with the standard error of its mean over the probes.

    Rows that no sample touches add nothing, so it is the trace of the full matrix too.
    """

    trace: float
    error: float
    samples: np.ndarray  # z' H z of each probe, plus the known eigenvalues; each cost one product
    tol: float

    @property
    def converged(self) -> bool:
        """Whether the error is at most tol * |trace|."""
        return self.error <= self.tol * abs(self.trace)


def trace(
    op: HessianOperator, tol: float = 0.05, max_products: int = 100, seed: int = 0, *, known: EigenResult | None = None
) -> TraceResult:
    """Estimate tr H by Hutchinson's method until the standard error is within `tol` of it, or for `max_products`.

    For probes z of independent signs, E[z' H z] = tr H. The variance of one probe is twice the sum of the squared
    off-diagonal entries, most of which belongs to the top eigenvectors. Where these are known, as orthonormal rows Q
    with eigenvalues lambda, only the rest is estimated (the deflation of Hutch++):

        tr H = sum lambda + E[y' H y],  y = z - Q'Q z

    which is exact in expectation for any orthonormal Q whose lambda are Rayleigh quotients, converged or not. `known`
    is a result of `top_eigenpairs` for the same operator.
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
        error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
        result = TraceResult(float(np.mean(samples)), error, np.array(samples), tol)
        if len(samples) >= max_products or (result.converged and len(samples) >= MIN_PROBES):
            return result


def random_signs(op: HessianOperator, rng: torch.Generator) -> Tensor:
    """Draw a touched vector of independent signs (Rademacher), the same on every worker."""
    signs = torch.randint(0, 2, (op.space.touched_size,), generator=rng, dtype=torch.int8)
    return (2 * signs - 1).to(op.device, op.dtype)


@dataclass(frozen=True)
class DensityResult:
    """Density of the eigenvalues with the quadrature it was made from."""

    grid: np.ndarray  # evenly spaced
    density: np.ndarray  # on the grid, of the eigenvalues of H on the touched dimensions; integrates to 1
    nodes: np.ndarray  # of the quadrature, all probes together
    weights: np.ndarray  # of the nodes; they sum to 1
    probe_of: np.ndarray  # which probe each node belongs to
    width: float  # standard deviation of the Gaussian kernel, in units of the eigenvalues
    touched_size: int
    full_size: int  # all dimensions; those that are not touched have eigenvalue exactly 0

    @property
    def untouched_share(self) -> float:
        """Share of the full matrix's eigenvalues that are 0 because no sample touches their row."""
        return 1 - self.touched_size / self.full_size

    @property
    def full_density(self) -> np.ndarray:
        """Density of the full matrix's eigenvalues on the grid, the untouched zeros blurred like all others."""
        zeros = gaussian_mixture(self.grid, np.zeros(1), np.ones(1), self.width)
        return (1 - self.untouched_share) * self.density + self.untouched_share * zeros


def spectral_density(op: HessianOperator, probes: int = 4, steps: int = 50, seed: int = 0) -> DensityResult:
    """Estimate the density of H's eigenvalues by stochastic Lanczos quadrature.

    For a unit probe v, m steps of Lanczos give a matrix T whose eigenvalues theta_i and squared first eigenvector
    entries w_i are a quadrature rule: v' f(H) v = sum_i w_i f(theta_i), exact for polynomials up to degree 2m-1. The
    mean over random probes estimates tr f(H) / n for any f. The density is that of the nodes, blurred by a Gaussian
    kernel of a hundredth of their range. It costs at most probes * steps products and memory for `steps` vectors; more
    probes make the weights of the bulk more exact, more steps resolve the spectrum more finely.

    Rows of the word-embedding table that no sample uses are left out: `full_density` adds their zeros.
    """
    if probes < 1 or steps < 2:
        raise UserError(f"a density needs at least 1 probe and 2 steps, not {probes} and {steps}")
    rng = torch.Generator().manual_seed(seed)
    rules = [_quadrature(op, steps, rng) for _ in range(probes)]
    nodes = np.concatenate([values for values, _ in rules])
    weights = np.concatenate([shares for _, shares in rules]) / probes
    probe_of = np.repeat(np.arange(probes), [len(values) for values, _ in rules])
    width = (float(np.ptp(nodes)) or float(np.abs(nodes).max()) or 1.0) / 100
    low, high = nodes.min() - MARGIN * width, nodes.max() + MARGIN * width
    grid = np.linspace(low, high, max(1001, int(np.ceil(4 * (high - low) / width)) + 1))
    density = gaussian_mixture(grid, nodes, weights, width)
    return DensityResult(grid, density, nodes, weights, probe_of, width, op.space.touched_size, op.space.size)


def _quadrature(op: HessianOperator, steps: int, rng: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of one probe."""
    basis = KrylovBasis(op, random_signs(op, rng), block_rows=min(steps, op.space.touched_size) + 1)
    while basis.size < steps and not (basis.size and basis.exhausted):
        basis.extend()
    values, vectors, _ = basis.ritz_pairs()
    return values, vectors[0] ** 2


def gaussian_mixture(grid: np.ndarray, centres: np.ndarray, weights: np.ndarray, width: float) -> np.ndarray:
    """Return the sum of weighted normal densities of one width at the points of the grid."""
    distances = (grid[:, None] - centres[None, :]) / width
    return np.exp(-0.5 * distances**2) @ weights / (width * np.sqrt(2 * np.pi))


def layer_eigenvalues(
    op: HessianOperator, model: nn.Module, tol: float = 1e-3, *, max_products: int = 300, seed: int = 0
) -> dict[str, EigenResult]:
    """Compute the top eigenpair of the diagonal block of each layer: embeddings, the numbered blocks, head.

    The convergence theorem speaks of one smoothness constant alpha_i per group of parameters and of their ratio
    kappa_alpha = max alpha_i / min alpha_i. At a checkpoint, the curvature along layer i alone is bounded by the top
    eigenvalue of H_ii, which is taken as alpha_i there (a local value: the theorem's holds everywhere). `max_products`
    is for each block, whose product costs a part of a full one.
    """
    return {
        layer: top_eigenpairs(op.block(names), 1, tol, max_products=max_products, seed=seed)
        for layer, names in layer_blocks(op, model).items()
    }


def kappa_alpha(layers: Mapping[str, EigenResult]) -> float:
    """Return the largest |alpha_i| over the smallest; infinite if a layer has no curvature at all."""
    alphas = np.abs([result.eigenvalues[0] for result in layers.values()])
    return float(alphas.max() / alphas.min()) if alphas.min() > 0 else float("inf")


def layer_blocks(op: HessianOperator, model: nn.Module) -> dict[str, list[str]]:
    """Return the operator's parameter names by layer, in the order of the model."""
    layers = layer_names(model)
    blocks: dict[str, list[str]] = {}
    for name in op.space.parameters:
        blocks.setdefault(layers[name], []).append(name)
    return blocks
