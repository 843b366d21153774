"""Trace of a Hessian by random probes, with an error bar.

Hutchinson: for probes z of independent signs, E[z' H z] = tr H. The variance of one probe is twice the sum of the
squared off-diagonal entries, most of which belongs to the top eigenvectors. Where these are known, as orthonormal rows
Q with eigenvalues lambda, only the rest is estimated (the deflation of Hutch++):

    tr H = sum lambda + E[y' H y],  y = z - Q'Q z

which is exact in expectation for any orthonormal Q whose lambda are Rayleigh quotients, converged or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scala_lab.curvature.eigen import EigenResult, Operator
from scala_lab.curvature.inner_products import dot, subtract_projection
from scala_lab.errors import UserError

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
    chance = torch.Generator().manual_seed(seed)
    exact = float(np.sum(known.eigenvalues)) if known is not None else 0.0
    samples: list[float] = []
    while True:
        probe = random_signs(op, chance)
        if known is not None:
            subtract_projection(probe, known.touched_eigenvectors)
        samples.append(exact + dot(probe, op.multiply(probe)))
        if len(samples) < 2:
            continue
        mean, error = float(np.mean(samples)), float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
        converged = error <= tol * abs(mean)
        if len(samples) >= max_products or (converged and len(samples) >= LEAST_PROBES):
            return TraceResult(mean, error, np.array(samples), len(samples), converged, tol, exact)


def random_signs(op: Operator, chance: torch.Generator) -> Tensor:
    """A touched vector of independent signs (Rademacher), the same on every worker."""
    signs = torch.randint(0, 2, (op.space.touched_size,), generator=chance, dtype=torch.int8)
    return (2 * signs - 1).to(op.device, op.dtype)
