"""The curvature of saved checkpoints over fixed, seeded rows, measured by one process or by several workers.

The rows depend on the task, their number and the seed alone: two methods are compared on the same samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import tyro

from scala_lab.config import DataSpec, MachineSpec, RunSpec
from scala_lab.curvature.eigensolvers import EigenResult, top_eigenpairs
from scala_lab.curvature.operator import HessianOperator
from scala_lab.data.tokens import Padding, TokenSplit, collate, cut_by_length
from scala_lab.errors import UserError, check_at_least
from scala_lab.machine import launched_workers, warn_of_crowded_cores
from scala_lab.models.loading import load_classifier, to_float64
from scala_lab.training.distributed import World, join_world, run_workers
from scala_lab.training.preparation import Prepared, admit_model, prepare, prepare_data
from scala_lab.training.progress import CountBar

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from scala_lab.curvature.spectrum import DensityResult
    from scala_lab.training.run_dir import RunResult


@dataclass(frozen=True)
class SampleOptions:
    """Which rows the loss is taken over, and how it is computed."""

    samples: int = 256
    """How many rows."""
    rows: Literal["train", "eval"] = "train"
    """Training rows, or evaluation rows."""
    seed: int = 0
    """Of the choice of rows, of solvers' starts and of random directions."""
    micro_batch: int = 64
    """Rows that run at once; changes speed and memory, not the result."""
    precision: Literal["float32", "float64"] = "float32"
    """Of weights and vectors."""
    memory: float = 2.0
    """GiB of gradient graphs to keep, which makes Hessian products faster; the rest is streamed."""
    threads: int = 0
    """CPU threads; 0 for as many as OMP_NUM_THREADS says, else all cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one."""

    @property
    def budget(self) -> int:
        """Bytes of gradient graphs to keep."""
        return int(self.memory * 2**30)

    def check(self, data: DataSpec) -> None:
        """Refuse numbers that cannot work."""
        check_at_least(1, samples=self.samples)
        check_at_least(0, memory=self.memory, threads=self.threads, seed=self.seed)
        if self.memory == float("inf"):
            raise UserError("--memory must be a finite number")
        RunSpec(data=data, seed=self.seed).override(micro_batch=self.micro_batch).resolved()


@dataclass(frozen=True)
class Loaded:
    """A checkpoint on its device, the batches of each disjoint set of rows, and the unit of the loss."""

    model: PreTrainedModel
    sets: list[list[dict[str, torch.Tensor]]]
    unit: str


def load_with_samples(
    checkpoint: Path,
    data: DataSpec,
    options: SampleOptions,
    device: torch.device,
    *,
    prepared: Prepared | None = None,
    repeats: int = 1,
    rank: int = 0,
    workers: int = 1,
) -> Loaded:
    """Load a checkpoint and a worker's share of its disjoint sets of rows, by default tokenised for the checkpoint."""
    prepared = prepared or prepare_data(data, str(checkpoint))
    model = load_classifier(str(checkpoint), prepared.task, new_head=False, label_names=data.label_names)
    padding = admit_model(model, prepared, str(checkpoint), use="predict").padding
    split = prepared.train if options.rows == "train" else next(iter(prepared.evals.values()))
    sets = [
        sorted_batches(split, rows, options.micro_batch, padding, rank, workers)
        for rows in disjoint_sets(split, options.samples, repeats, options.seed)
    ]
    torch.nn.Module.to(to_float64(model) if options.precision == "float64" else model, device)
    return Loaded(model, sets, "squared label units" if prepared.task.regression else "nats")


def load_run(run: RunResult, samples: int, sets: int = 1, seed: int = 0) -> Loaded:
    """Load a finished run's checkpoint with disjoint sets of the rows that it was trained on."""
    device = torch.device("cuda" if run.spec.machine.device == "cuda" else "cpu")
    # the spec's label names are those of the model that the run started from; its checkpoint has the task's
    data, options = replace(run.spec.data, label_names=()), SampleOptions(samples, seed=seed)
    return load_with_samples(run.checkpoint, data, options, device, prepared=prepare(run.spec), repeats=sets)


def disjoint_sets(split: TokenSplit, samples: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Draw `repeats` sets of `samples` rows, no row twice; the first set does not depend on how many there are."""
    if samples * repeats > len(split):
        request = f"{samples} rows" if repeats == 1 else f"{repeats} disjoint sets of {samples} rows"
        raise UserError(f"{request} were asked for, but there are {len(split)}")
    order = np.random.default_rng([seed, 4]).permutation(len(split))
    return [order[index * samples : (index + 1) * samples] for index in range(repeats)]


def sorted_batches(
    split: TokenSplit, rows: np.ndarray, micro_batch: int, padding: Padding, rank: int = 0, workers: int = 1
) -> list[dict[str, torch.Tensor]]:
    """Collate a worker's share of some rows into batches for a model, sorted by length, so that little is padded."""
    longest_first = rows[np.argsort(-split.lengths[rows], kind="stable")]
    share = longest_first[rank::workers]
    return [collate(split, part, padding) for part in cut_by_length(split, share, micro_batch, padding)]


@dataclass(frozen=True)
class SharpnessOptions:
    """What to measure of which checkpoints."""

    checkpoints: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, or folders that hold config.json and model.safetensors."""
    data: DataSpec = field(default_factory=DataSpec)
    over: SampleOptions = field(default_factory=SampleOptions)
    repeats: int = 1
    """Disjoint sets of that many rows: the table shows mean and standard deviation over them."""
    top_k: int = 1
    """How many of the largest eigenvalues."""
    smallest: bool = False
    """Also the most negative eigenvalue."""
    trace: bool = False
    """Also the trace, with a standard error; converged if that is at most 5% of it."""
    layers: bool = False
    """Also the top eigenvalue of each layer's block (alpha_i) and their spread kappa_alpha."""
    density: bool = False
    """Also the spectral density, drawn into --out."""
    solver: Literal["lanczos", "power", "pyhessian"] = "lanczos"
    """lanczos: fewest products; power: the paper's; pyhessian: that package, as a cross-check."""
    tol: float = 1e-3
    """Largest residual of a converged pair."""
    max_products: int = 300
    """Stop a solver, and the trace, after this many Hessian-vector products."""
    workers: int = 1
    """Processes that share the rows: each multiplies its own, one all-reduce per product; torchrun works as well."""

    @property
    def machine(self) -> MachineSpec:
        """Workers, threads and device, resolved."""
        workers, threads = launched_workers(self.workers), self.over.threads or None
        return MachineSpec(workers, threads, self.over.device).resolved()


Results = tuple[list[dict[str, Any]], dict[str, "DensityResult"]]
"""One record per checkpoint, ready for JSON, and the densities that were requested, by checkpoint."""


def measure_sharpness(options: SharpnessOptions) -> Results:
    """Measure every checkpoint, as the only process or as one of several workers, which all return the same."""
    world = join_world(options.machine)
    try:
        with CountBar(world.leads) as bar:
            measured = [_measure_checkpoint(options, checkpoint, world, bar) for checkpoint in options.checkpoints]
    finally:
        world.leave()
    densities = {record["checkpoint"]: density for record, density in measured if density is not None}
    return [record for record, _ in measured], densities


def measure_by_workers(options: SharpnessOptions) -> Results:
    """Start the workers and return the results of the first one; all have the same."""
    return run_workers(partial(measure_sharpness, options), options.machine)


def _measure_checkpoint(
    options: SharpnessOptions, checkpoint: Path, world: World, bar: CountBar
) -> tuple[dict[str, Any], DensityResult | None]:
    """Return the record of a checkpoint, and the density of its first set of rows.

    With several sets of rows, `eigenvalues` is the mean over them, `deviation` their standard deviation, and `sets` has
    the values of each.
    """
    over = options.over
    share: dict[str, Any] = {"repeats": options.repeats, "rank": world.rank, "workers": world.size}
    loaded = load_with_samples(checkpoint, options.data, over, world.device, **share)
    if world.leads and checkpoint == options.checkpoints[0]:
        warn_of_crowded_cores(options.machine.device, options.machine.workers, options.machine.threads or 1)
    group = dist.group.WORLD if world.size > 1 else None
    sets, density = [], None
    for number, batches in enumerate(loaded.sets, start=1):
        bar.begin(f"{checkpoint} ({number}/{options.repeats})" if options.repeats > 1 else str(checkpoint), "products")
        started = time.perf_counter()
        op = HessianOperator(loaded.model, batches, budget=over.budget, group=group, on_product=bar.count)
        loss = op.loss()
        if not np.isfinite(loss):
            raise UserError(f"{checkpoint}: the mean loss over these rows is {loss}, which has no curvature")
        top = _top_eigenpairs(options, batches, op)
        entry = top.record() | {"seconds": time.perf_counter() - started}
        entry |= ({"note": top.note} if top.note else {}) | _extras(options, op, top)
        if options.density and number == 1:
            from scala_lab.curvature.spectrum import spectral_density

            density = spectral_density(op, seed=over.seed)
        sets.append(entry | {"all_hvps": op.products, "loss": loss})
    return _combine_sets(options, checkpoint, loaded.unit, sets), density


def _top_eigenpairs(
    options: SharpnessOptions, batches: list[dict[str, torch.Tensor]], op: HessianOperator
) -> EigenResult:
    k, tol, seed = options.top_k, options.tol, options.over.seed
    if k > op.space.touched_size:
        raise UserError(f"--top-k {k}: these rows touch {op.space.touched_size} parameters, there are no more pairs")
    if options.solver == "pyhessian":
        from scala_lab.curvature.pyhessian_check import pyhessian_top

        return pyhessian_top(op, batches, k, tol, max(1, options.max_products // k), seed)
    return top_eigenpairs(op, k, tol, solver=options.solver, max_products=options.max_products, seed=seed)


def _extras(options: SharpnessOptions, op: HessianOperator, top: EigenResult) -> dict[str, Any]:
    """Measure what was requested besides the top eigenpairs, with the same operator."""
    extras: dict[str, Any] = {}
    tol, max_products, seed = options.tol, options.max_products, options.over.seed
    if options.smallest:
        extras["smallest"] = top_eigenpairs(op, 1, tol, which="smallest", max_products=max_products, seed=seed).first()
    if options.trace or options.layers:
        from scala_lab.curvature.spectrum import kappa_alpha, layer_eigenvalues, trace
    if options.trace:
        total = trace(op, max_products=max(2, max_products), seed=seed, known=top if top.converged else None)
        extras["trace"] = {"value": total.trace, "error": total.error, "converged": total.converged}
    if options.layers:
        layers = layer_eigenvalues(op, op.model, tol, max_products=max_products, seed=seed)
        extras["layers"] = {name: result.first() for name, result in layers.items()}
        extras["kappa_alpha"] = kappa_alpha(layers)
    return extras


def _combine_sets(options: SharpnessOptions, checkpoint: Path, unit: str, sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of a checkpoint from those of its sets of rows."""
    values, over = np.array([entry["eigenvalues"] for entry in sets]), options.over
    record = {"checkpoint": str(checkpoint), "task": options.data.task, "rows": over.rows, "samples": over.samples}
    extras = ("smallest", "trace", "layers", "kappa_alpha", "note")
    return record | {
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
        **{name: sets[0][name] for name in extras if name in sets[0]},
        **({"sets": sets} if len(sets) > 1 else {}),
    }


def all_converged(record: dict[str, Any]) -> bool:
    """Return whether everything that was requested, over every set, is within its tolerance."""
    parts = []
    for entry in record.get("sets", [record]):
        parts += [entry, *entry.get("layers", {}).values()]
        parts += [entry[name] for name in ("smallest", "trace") if name in entry]
    return all(part["converged"] for part in parts)


def short_names(checkpoints: Sequence[Path]) -> dict[str, str]:
    """Return what figures call the checkpoints: their paths from the folder that they have in common.

    >>> short_names([Path("runs/seed-0/plain"), Path("runs/seed-0/scala")])
    {'runs/seed-0/plain': 'plain', 'runs/seed-0/scala': 'scala'}
    """
    paths = [Path(os.path.abspath(checkpoint)) for checkpoint in checkpoints]
    common = os.path.commonpath([path.parent for path in paths])
    return {str(checkpoint): os.path.relpath(path, common) for checkpoint, path in zip(checkpoints, paths, strict=True)}
