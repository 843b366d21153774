"""The curvature of checkpoints, as `scala-lab sharpness` was asked for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from scala_lab.commands.count_bar import CountBar
from scala_lab.commands.samples import load_with_samples
from scala_lab.curvature import EigenResult, HessianOperator, top_eigenpairs
from scala_lab.curvature.density import DensityResult, spectral_density
from scala_lab.curvature.layers import layer_eigenvalues
from scala_lab.curvature.pyhessian_check import pyhessian_top
from scala_lab.curvature.trace import trace
from scala_lab.errors import UserError
from scala_lab.training.world import World, join_world, warn_of_crowded_cores

if TYPE_CHECKING:
    from scala_lab.commands.sharpness_options import Sharpness


Findings = tuple[list[dict[str, Any]], dict[str, DensityResult]]
"""A finding per checkpoint, ready for JSON, and the densities that were asked for, by checkpoint."""


def measure_all(options: Sharpness) -> Findings:
    """Measure every checkpoint, as the only process or as one of several workers, who all find the same."""
    findings: list[dict[str, Any]] = []
    densities: dict[str, DensityResult] = {}
    world = join_world(options.spec)
    try:
        with CountBar(shown=world.leads) as bar:
            for checkpoint in options.checkpoints:
                finding, density = _measure(options, checkpoint, world, bar)
                findings.append(finding)
                if density is not None:
                    densities[str(checkpoint)] = density
    finally:
        world.leave()
    return findings, densities


def _measure(
    options: Sharpness, checkpoint: Path, world: World, bar: CountBar
) -> tuple[dict[str, Any], DensityResult | None]:
    """The findings on a checkpoint, and the density of its first set of rows.

    With several sets of rows, `eigenvalues` is the mean over them and `deviation` their standard deviation; each
    set's own values stand under `sets`.
    """
    share = {"rank": world.rank, "workers": world.size}
    group = dist.group.WORLD if world.size > 1 else None
    loaded = load_with_samples(checkpoint, options.data, options.over, world.device, repeats=options.repeats, **share)
    if world.leads and checkpoint == options.checkpoints[0]:
        warn_of_crowded_cores(options.spec)
    entries, density = [], None
    for number, batches in enumerate(loaded.sets, start=1):
        bar.start(f"{checkpoint} ({number}/{options.repeats})" if options.repeats > 1 else str(checkpoint), "products")
        started = time.perf_counter()
        op = HessianOperator(loaded.model, batches, budget=options.over.budget, group=group, on_product=bar.advance)
        loss = op.loss()
        if not np.isfinite(loss):
            raise UserError(f"{checkpoint}: the mean loss over these rows is {loss}, which has no curvature")
        found = _top(options, loaded.model, batches, op, bar)
        entry = {
            "eigenvalues": found.eigenvalues.tolist(),
            "residuals": found.residuals.tolist(),
            "hvps": found.hvps,
            "converged": found.converged,
            "seconds": time.perf_counter() - started,
            **({"note": found.note} if found.note else {}),
        }
        entry |= _extras(options, loaded.model, op, found)
        if options.density and number == 1:
            density = spectral_density(op, seed=options.over.seed)
        entry |= {"all_hvps": op.products, "loss": loss}
        entries.append(entry)
    return _finding(options, checkpoint, loaded.unit, entries), density


def _top(
    options: Sharpness, model: torch.nn.Module, batches: list[dict[str, Any]], op: HessianOperator, bar: CountBar
) -> EigenResult:
    k, seed = options.top_k, options.over.seed
    if k > op.space.touched_size:
        raise UserError(f"--top-k {k}: these rows touch {op.space.touched_size} parameters, there are no more pairs")
    if options.solver == "pyhessian":
        each = max(1, options.max_products // k)
        return pyhessian_top(model, batches, k, options.tol, each, seed, op=op, on_product=bar.advance)
    return top_eigenpairs(op, k, options.tol, solver=options.solver, max_products=options.max_products, seed=seed)


def _extras(options: Sharpness, model: torch.nn.Module, op: HessianOperator, found: EigenResult) -> dict[str, Any]:
    """What was asked for besides the top of the spectrum, from the same operator."""
    extras: dict[str, Any] = {}
    seed = options.over.seed
    if options.smallest:
        lowest = top_eigenpairs(op, 1, options.tol, which="smallest", max_products=options.max_products, seed=seed)
        extras["smallest"] = {
            "eigenvalue": float(lowest.eigenvalues[0]),
            "residual": float(lowest.residuals[0]),
            "converged": lowest.converged,
        }
    if options.trace:
        known = found if found.converged else None
        estimate = trace(op, max_products=max(2, options.max_products), seed=seed, known=known)
        extras["trace"] = {"value": estimate.trace, "error": estimate.error, "converged": estimate.converged}
    if options.layers:
        layers = layer_eigenvalues(op, model, options.tol, max_products=options.max_products, seed=seed)
        extras["layers"] = {
            name: {"eigenvalue": float(value), "residual": float(residual), "converged": bool(sure)}
            for name, value, residual, sure in zip(
                layers.names, layers.eigenvalues, layers.residuals, layers.converged, strict=True
            )
        }
        extras["kappa_alpha"] = layers.kappa_alpha
    return extras


def _finding(options: Sharpness, checkpoint: Path, unit: str, sets: list[dict[str, Any]]) -> dict[str, Any]:
    """The sets of rows of one checkpoint brought together."""
    values = np.array([entry["eigenvalues"] for entry in sets])
    extras = ("smallest", "trace", "layers", "kappa_alpha", "note")
    first: dict[str, Any] = {name: sets[0][name] for name in extras if name in sets[0]}
    return {
        "checkpoint": str(checkpoint),
        "task": options.data.task,
        "rows": options.over.rows,
        "samples": options.over.samples,
        "solver": options.solver,
        "tol": options.tol,
        "eigenvalues": values.mean(0).tolist(),
        "deviation": values.std(0, ddof=1).tolist() if len(sets) > 1 else None,
        "residuals": np.array([entry["residuals"] for entry in sets]).max(0).tolist(),
        "hvps": sum(entry["hvps"] for entry in sets),
        "converged": all(entry["converged"] for entry in sets),
        "seconds": sum(entry["seconds"] for entry in sets),
        "loss": float(np.mean([entry["loss"] for entry in sets])),
        "loss_unit": unit,
        **first,
        **({"sets": sets} if len(sets) > 1 else {}),
    }


def all_converged(finding: dict[str, Any]) -> bool:
    """Whether all that was asked for, over every set, is within its tolerance."""
    return all(
        part["converged"]
        for entry in finding.get("sets", [finding])
        for part in (entry, *entry.get("layers", {}).values(), *(entry[name] for name in _ONCE if name in entry))
    )


_ONCE = ("smallest", "trace")
"""What there is one of for every set, with a convergence of its own."""
