"""What the convergence study asks: the theorem's left side over T, and the lemma's gaps over ascent steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scala_lab.theory.lemma import ascent_rates
from scala_lab.theory.minimax import (
    Descent,
    ascent,
    envelope,
    envelope_gradient,
    grouped_problem,
    off_by,
    printed_batch,
)

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

START_NORM = 6.0
"""Length of every group of x_0: a few units of phi's bumps away from the global minimum."""
POINTS = 64
"""Iterates of a run at which the envelope's gradient is computed, spread evenly at random over its T steps."""


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
    """E ||grad g_{1/2alpha}(xbar)||^2 after runs of several lengths T, xbar uniform among a run's iterates.

    Replica r starts from the same x_0 and meets the same noise under every other setting, so that settings can be
    compared in pairs.

    Args:
        runs: None are needed.
        steps: Values of T.
        replicas: Independent starts and noises.
        kappa: kappa_alpha of the problem.
        epsilon: What the inner player gives away.
        ascent_steps: If positive, the inner player is PGA with that many steps, and epsilon is not used.
        lower: L.
        upper: U.
        batch: growing as the theorem says, or one sample per step.
        seed: Of starts and noises.

    Returns:
        For each T a list over replicas, `squared_gradient_T`; `bound_T`, the printed right side; `steps`, `batches`,
        `gap` (D, its mean over the starts), `gradient_bound` (G) and `largest_alpha`.
    """
    problem = grouped_problem(kappa)
    inner = ascent(ascent_steps) if ascent_steps else off_by(epsilon)
    shape = (replicas, len(problem.scales_H), len(problem.concavity_D))
    start = np.random.default_rng([seed, 0]).normal(size=shape)
    start *= START_NORM / np.linalg.norm(start, axis=-1, keepdims=True)
    # g >= 0 since phi >= 0 and y = 0 is allowed, and g(0) = 0: its minimum is 0
    gap = float(envelope(problem, start).mean())
    largest = float(problem.alphas_H.max())
    found: dict[str, Any] = {
        "steps": list(steps),
        "batches": [],
        "gap": gap,
        "gradient_bound": problem.gradient_bound,
        "largest_alpha": largest,
    }
    for count in steps:
        rng = np.random.default_rng([seed, count])
        descent = Descent(count, lower, upper, printed_batch(problem, count, lower, upper) if batch == "growing" else 1)
        iterates = descent.iterates(problem, start, inner, _spread(count, rng), rng)
        squares = (envelope_gradient(problem, iterates, tol=1e-6) ** 2).sum((-2, -1))
        found["batches"].append(descent.batch)
        found[f"squared_gradient_{count}"] = squares.mean(0).tolist()
        found[f"bound_{count}"] = 4 * epsilon * largest + 2 * kappa * gap * problem.gradient_bound / np.sqrt(count)
    return found


def _spread(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Steps from 0 to T - 1, one drawn uniformly from each of equal parts: the mean over them is unbiased."""
    parts = min(POINTS, steps)
    return np.unique(((np.arange(parts) + rng.random(parts)) * steps / parts).astype(int))


def ascent_gaps(
    runs: Sequence[RunResult], *, kind: Literal["box", "sparse"], ratio: float, problems: int, steps: int, seed: int = 0
) -> dict[str, Any]:
    """How the gap of projected gradient ascent shrinks over its steps.

    Args:
        runs: None are needed.
        kind: The constraint set.
        ratio: S / C.
        problems: Random problems.
        steps: Ascent steps.
        seed: Of the problems.

    Returns:
        `factor`, `worst_factor` and `bend` of each problem, `median_gap` over the steps (relative to the first),
        and `left`, the relative gap of each problem after the last step, rounding counted as 0.
    """
    rates = ascent_rates(kind, ratio, problems, steps, seed)
    return {
        "factor": rates.factors.tolist(),
        "worst_factor": rates.worst_factors.tolist(),
        "bend": rates.bends.tolist(),
        "median_gap": np.median(np.nan_to_num(rates.gaps), axis=0).tolist(),
        "left": np.nan_to_num(rates.gaps[:, -1]).tolist(),
    }
