"""One checkpoint's curvature, as `scala-lab sharpness` was asked for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from scala_lab.commands.checkpoints import load_checkpoint, pick_device
from scala_lab.commands.product_bar import ProductBar
from scala_lab.curvature import EigenResult, HessianOperator, top_eigenpairs
from scala_lab.curvature.density import DensityResult, spectral_density
from scala_lab.curvature.layers import layer_eigenvalues
from scala_lab.curvature.pyhessian_check import pyhessian_top
from scala_lab.curvature.rows import disjoint_sets, sorted_batches
from scala_lab.curvature.trace import trace

if TYPE_CHECKING:
    from scala_lab.commands.sharpness import Sharpness


def measure(options: Sharpness, checkpoint: Path, bar: ProductBar) -> tuple[dict[str, Any], DensityResult | None]:
    """The findings on a checkpoint, ready for JSON, and the density of the first set of rows if it was asked for.

    With several sets of rows, `eigenvalues` is the mean over them and `deviation` their standard deviation; each
    set's own values stand under `sets`.
    """
    model, prepared = load_checkpoint(checkpoint, options.data)
    torch.nn.Module.to(model, pick_device(options.device), getattr(torch, options.precision))
    split = prepared.train if options.rows == "train" else next(iter(prepared.evals.values()))
    pad_id = prepared.tokenizer.pad_token_id
    sets, density = [], None
    for number, rows in enumerate(disjoint_sets(split, options.samples, options.repeats, options.seed)):
        batches = sorted_batches(split, rows, options.micro_batch, pad_id)
        bar.start(f"{checkpoint} ({number + 1}/{options.repeats})" if options.repeats > 1 else str(checkpoint))
        started = time.perf_counter()
        op = HessianOperator(model, batches, budget=int(options.memory * 2**30), on_product=bar.advance)
        found = _top(options, model, batches, op, bar)
        entry = {
            "eigenvalues": found.eigenvalues.tolist(),
            "residuals": found.residuals.tolist(),
            "hvps": found.hvps,
            "converged": found.converged,
            "seconds": time.perf_counter() - started,
            **({"note": found.note} if found.note else {}),
        }
        entry |= _extras(options, model, op, found)
        if options.density and number == 0:
            density = spectral_density(op, seed=options.seed)
        entry["all_hvps"], entry["loss"] = op.products, op.loss()
        sets.append(entry)
    return _finding(options, checkpoint, sets), density


def _top(
    options: Sharpness, model: torch.nn.Module, batches: list[dict[str, Any]], op: HessianOperator, bar: ProductBar
) -> EigenResult:
    if options.solver == "pyhessian":
        return pyhessian_top(
            model,
            batches,
            options.top_k,
            options.tol,
            options.max_products,
            options.seed,
            op=op,
            on_product=bar.advance,
        )
    return top_eigenpairs(
        op,
        options.top_k,
        options.tol,
        solver=options.solver,
        max_products=options.max_products,
        seed=options.seed,
    )


def _extras(options: Sharpness, model: torch.nn.Module, op: HessianOperator, found: EigenResult) -> dict[str, Any]:
    """What was asked for besides the top of the spectrum, from the same operator."""
    extras: dict[str, Any] = {}
    if options.smallest:
        lowest = top_eigenpairs(
            op, 1, options.tol, which="smallest", max_products=options.max_products, seed=options.seed
        )
        extras["smallest"] = {
            "eigenvalue": float(lowest.eigenvalues[0]),
            "residual": float(lowest.residuals[0]),
            "converged": lowest.converged,
        }
    if options.trace:
        estimate = trace(op, seed=options.seed, known=found if found.converged else None)
        extras["trace"] = {"value": estimate.trace, "error": estimate.error, "converged": estimate.converged}
    if options.layers:
        layers = layer_eigenvalues(op, model, options.tol, max_products=options.max_products, seed=options.seed)
        extras["layers"] = {
            name: {"eigenvalue": float(value), "residual": float(residual), "converged": bool(sure)}
            for name, value, residual, sure in zip(
                layers.names, layers.eigenvalues, layers.residuals, layers.converged, strict=True
            )
        }
        extras["kappa_alpha"] = layers.kappa_alpha
    return extras


def _finding(options: Sharpness, checkpoint: Path, sets: list[dict[str, Any]]) -> dict[str, Any]:
    """The sets of rows of one checkpoint brought together."""
    values = np.array([entry["eigenvalues"] for entry in sets])
    extras = ("smallest", "trace", "layers", "kappa_alpha", "note")
    first: dict[str, Any] = {name: sets[0][name] for name in extras if name in sets[0]}
    return {
        "checkpoint": str(checkpoint),
        "task": options.data.task,
        "rows": options.rows,
        "samples": options.samples,
        "solver": options.solver,
        "tol": options.tol,
        "eigenvalues": values.mean(0).tolist(),
        "deviation": values.std(0, ddof=1).tolist() if len(sets) > 1 else None,
        "residuals": np.array([entry["residuals"] for entry in sets]).max(0).tolist(),
        "hvps": sum(entry["hvps"] for entry in sets),
        "converged": all(_all_converged(entry) for entry in sets),
        "seconds": sum(entry["seconds"] for entry in sets),
        "loss": float(np.mean([entry["loss"] for entry in sets])),
        **first,
        **({"sets": sets} if len(sets) > 1 else {}),
    }


def _all_converged(entry: dict[str, Any]) -> bool:
    """Whether every eigenpair is within the tolerance; a trace speaks for itself by its error."""
    parts = [entry, *entry.get("layers", {}).values(), *([entry["smallest"]] if "smallest" in entry else [])]
    return all(part["converged"] for part in parts)
