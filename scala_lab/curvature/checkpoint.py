"""The curvature of a trained checkpoint over fixed, seeded rows: what the commands and the studies ask for.

Which rows a Hessian is taken over: fixed, seeded, disjoint sets, cut into length-sorted batches.

What the studies ask about a trained run's curvature; every result is flat, ready for JSON.

All are taken over training rows of the run, in fixed, seeded sets, which are the same for every run on the same task:
the sharpness of one method and another is that of the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.curvature.eigensolvers import top_eigenpairs
from scala_lab.curvature.landscape import eigenvector_directions, filter_normalised, slice_1d, slice_2d
from scala_lab.curvature.operator import HessianOperator
from scala_lab.curvature.spectrum import layer_eigenvalues, spectral_density, trace
from scala_lab.data.tokens import Padding, TokenSplit, collate, cut_by_length
from scala_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from scala_lab.training.run_dir import RunResult


def disjoint_sets(split: TokenSplit, samples: int, repeats: int, seed: int) -> list[np.ndarray]:
    """`repeats` sets of `samples` rows, no row twice; the first set does not depend on how many there are."""
    if samples * repeats > len(split):
        asked = f"{samples} rows" if repeats == 1 else f"{repeats} disjoint sets of {samples} rows"
        raise UserError(f"{asked} were asked for, but there are {len(split)}")
    order = np.random.default_rng([seed, 4]).permutation(len(split))
    return [order[part * samples : (part + 1) * samples] for part in range(repeats)]


def sorted_batches(
    split: TokenSplit, rows: np.ndarray, micro_batch: int, padding: Padding, rank: int = 0, workers: int = 1
) -> list[dict[str, torch.Tensor]]:
    """A worker's share of some rows as batches for a model: sorted by length, so that little is padded."""
    longest_first = rows[np.argsort(-split.lengths[rows], kind="stable")]
    mine = longest_first[rank::workers]
    return [collate(split, part, padding) for part in cut_by_length(split, mine, micro_batch, padding)]


MICRO_BATCH = 64


def sharpness(
    runs: Sequence[RunResult],
    *,
    samples: int,
    sets: int,
    tol: float = 1e-3,
    max_products: int = 300,
    power_products: int = 0,
    power_tol: float = 1e-2,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Top eigenvalue on several disjoint sets of rows by Lanczos, and on the first by power iteration as a check.

    Args:
        runs: The run to look at.
        samples: Rows of each set.
        sets: How many.
        tol: Largest residual of a converged eigenpair.
        max_products: For each search.
        power_products: Most products of the check; 0 for none.
        power_tol: Largest residual of a converged check; a residual r bounds the eigenvalue's relative error by r.
        seed: Of the choice of rows and of the random starts.
        threads: Set by whoever calls this; part of what determines the last bits.

    Returns:
        `eigenvalue` (mean over the sets), `deviation` (standard deviation over them; None for one set),
        `eigenvalues`, `residuals`, `converged`, `tolerance`, `hvps`, `loss` (mean over the sets), `score` (the
        run's headline metric in percent; None without one) and, where the check was asked for, `power_eigenvalue`,
        `power_residual`, `power_converged`, `power_hvps`.
    """
    scene = _scene(runs[0], samples, sets, seed)
    values, residuals, products, losses = [], [], 0, []
    power: dict[str, Any] = {}
    for batches in scene.sets:
        op = HessianOperator(scene.model, batches)
        found = top_eigenpairs(op, 1, tol, max_products=max_products, seed=seed)
        values.append(float(found.eigenvalues[0]))
        residuals.append(float(found.residuals[0]))
        products += found.hvps
        losses.append(op.loss())
        if power_products and not power:
            check = top_eigenpairs(op, 1, power_tol, solver="power", max_products=power_products, seed=seed)
            power = {
                "power_eigenvalue": float(check.eigenvalues[0]),
                "power_residual": float(check.residuals[0]),
                "power_converged": check.converged,
                "power_hvps": check.hvps,
            }
    return {
        "eigenvalue": float(np.mean(values)),
        "deviation": float(np.std(values, ddof=1)) if sets > 1 else None,
        "eigenvalues": values,
        "residuals": residuals,
        "converged": max(residuals) <= tol,
        "tolerance": tol,
        "hvps": products,
        "loss": float(np.mean(losses)),
        "score": _score(runs[0]),
        **power,
    }


def spectrum(
    runs: Sequence[RunResult],
    *,
    samples: int,
    top_k: int = 1,
    tol: float = 1e-3,
    max_products: int = 300,
    probes: int = 1,
    lanczos_steps: int = 30,
    trace_products: int = 15,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Both ends of the spectrum, its trace and density, and the top eigenvalue of every layer's block.

    Args:
        runs: The run to look at.
        samples: Rows of the one set.
        top_k: Top eigenvalues of the whole Hessian.
        tol: Largest residual of a converged eigenpair.
        max_products: For each search.
        probes: Of the density.
        lanczos_steps: Of each probe.
        trace_products: Most probes of the trace.
        seed: Of rows, starts and probes.
        threads: Set by whoever calls this.

    Returns:
        `eigenvalues`, `residuals`, `smallest`, `smallest_residual`, `trace`, `trace_error`, `trace_converged`; the
        density as quadrature `nodes` and `weights` with `touched_size` and `full_size`; `layers` with
        `layer_eigenvalues`, `layer_residuals` and `layer_converged`, and `kappa_alpha`; `converged`, `hvps`.
    """
    scene = _scene(runs[0], samples, 1, seed)
    op = HessianOperator(scene.model, scene.sets[0])
    top = top_eigenpairs(op, top_k, tol, max_products=max_products, seed=seed)
    low = top_eigenpairs(op, 1, tol, which="smallest", max_products=max_products, seed=seed)
    total = trace(op, max_products=trace_products, seed=seed, known=top if top.converged else None)
    density = spectral_density(op, probes, lanczos_steps, seed)
    layers = layer_eigenvalues(op, scene.model, tol, max_products=max_products, seed=seed)
    return {
        "eigenvalues": top.eigenvalues.tolist(),
        "residuals": top.residuals.tolist(),
        "smallest": float(low.eigenvalues[0]),
        "smallest_residual": float(low.residuals[0]),
        "trace": total.trace,
        "trace_error": total.error,
        "trace_converged": total.converged,
        "nodes": density.nodes.tolist(),
        "weights": density.weights.tolist(),
        "probe_of": density.probe_of.tolist(),
        "touched_size": density.touched_size,
        "full_size": density.full_size,
        "layers": list(layers.names),
        "layer_eigenvalues": layers.eigenvalues.tolist(),
        "layer_residuals": layers.residuals.tolist(),
        "layer_converged": layers.converged.tolist(),
        "kappa_alpha": layers.kappa_alpha,
        "converged": top.converged and low.converged and bool(layers.converged.all()),
        "hvps": op.products + int(layers.hvps.sum()),
    }


def slices(
    runs: Sequence[RunResult],
    *,
    samples: int,
    line_points: int,
    line_reach: float,
    plane_points: int,
    plane_reach: float,
    tol: float = 1e-2,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Loss and accuracy along the top eigenvector, and over a plane of two filter-normalised random directions.

    Args:
        runs: The run to look at.
        samples: Rows of the one set.
        line_points: Along the eigenvector.
        line_reach: How far to both sides, in units of weight.
        plane_points: Along each side of the plane.
        plane_reach: How far to each side, in weight norms.
        tol: Of the eigenvector.
        seed: Of rows, start and directions.
        threads: Set by whoever calls this.

    Returns:
        `line_position`, `line_loss`, `line_accuracy`, `plane_x`, `plane_y`, `plane_loss`, `plane_accuracy`, and the
        `eigenvalue` with its `residual`. Values that are not finite are None, as are accuracies of a regression.
    """
    scene = _scene(runs[0], samples, 1, seed)
    batches = scene.sets[0]
    top = top_eigenpairs(HessianOperator(scene.model, batches), 1, tol, seed=seed)
    line = slice_1d(scene.model, batches, eigenvector_directions(top)[0], line_points, (-line_reach, line_reach))
    directions = filter_normalised(scene.model, seed), filter_normalised(scene.model, seed + 1)
    plane = slice_2d(scene.model, batches, directions, plane_points, (-plane_reach, plane_reach))
    found = {f"line_{name}": _finite(line[name]) for name in line.columns}
    found |= {f"plane_{name}": _finite(plane[name]) for name in plane.columns}
    return {**found, "eigenvalue": float(top.eigenvalues[0]), "residual": float(top.residuals[0])}


@dataclass(frozen=True)
class _Scene:
    """A trained model and the sets of rows it is looked at over, each as batches."""

    model: PreTrainedModel
    sets: list[list[dict[str, torch.Tensor]]]


def _scene(run: RunResult, samples: int, sets: int, seed: int) -> _Scene:
    import torch

    from scala_lab.models.loading import load_classifier
    from scala_lab.training.preparation import admit_model, prepare

    spec = run.spec
    prepared = prepare(spec)
    model = load_classifier(str(run.checkpoint), prepared.task, new_head=False)
    padding = admit_model(model, prepared, str(run.checkpoint), use="predict").padding
    device = torch.device("cuda" if spec.machine.device == "cuda" else "cpu")
    model.to(device, torch.float32)  # type: ignore[arg-type]
    chosen = disjoint_sets(prepared.train, samples, sets, seed)
    return _Scene(model, [sorted_batches(prepared.train, rows, MICRO_BATCH, padding) for rows in chosen])


def _score(run: RunResult) -> float | None:
    return next((100 * value for split in run.metrics.values() for value in split.values()), None)


def _finite(column: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in column]
