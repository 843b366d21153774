"""`scala-lab sharpness`: the top Hessian eigenvalues of saved checkpoints, with evidence."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scala_lab.commands.checkpoints import (
    check_checkpoints,
    check_distinct,
    check_new_file,
    check_new_folder,
    parse_with_run_data,
)
from scala_lab.commands.samples import SampleOptions, check_samples
from scala_lab.errors import UserError
from scala_lab.launcher import launched_workers
from scala_lab.spec import DataSpec, MachineSpec, RunSpec


@dataclass(frozen=True)
class Sharpness:
    """How sharp checkpoints are: the largest eigenvalues of the Hessian of their task loss.

    The loss is the plain task loss over a fixed, seeded set of rows, in eval mode. Every eigenvalue comes with
    its residual ||Hv - lambda v|| / |lambda| and counts as converged only if that is at most --tol. Without --task
    the rows are those that the first run folder was trained on.

        scala-lab sharpness runs/a runs/b
        scala-lab sharpness model --task sst2 --data-dir glue --samples 256 --top-k 5 --repeats 4 --out sharpness
    """

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
    """Also the trace, with a standard error."""
    layers: bool = False
    """Also the top eigenvalue of each layer's block (alpha_i) and their spread kappa_alpha."""
    density: bool = False
    """Also the spectral density, drawn into --out."""
    solver: Literal["lanczos", "power", "pyhessian"] = "lanczos"
    """lanczos: fewest products; power: the paper's; pyhessian: that package, as a cross-check."""
    tol: float = 1e-3
    """Largest residual of a converged pair."""
    max_products: int = 300
    """Stop a solver after this many Hessian-vector products."""
    workers: int = 1
    """Processes that share the rows: each multiplies its own, one all-reduce per product; torchrun works as well."""
    json_: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Write the findings as JSON."""
    out: Path | None = None
    """Folder for the table (CSV) and figures (PNG and SVG)."""

    @property
    def spec(self) -> RunSpec:
        """The machine's share of the options, resolved and checked as for a run."""
        workers, threads = launched_workers(self.workers), self.over.threads or None
        machine = MachineSpec(workers=workers, threads=threads, device=self.over.device)
        return RunSpec(data=self.data, machine=machine).override(batch_size=max(1, workers)).resolved()


def parse(args: list[str]) -> Sharpness:
    """Flags; without --task, the data of the first run folder."""
    return parse_with_run_data(Sharpness, args, prog="scala-lab sharpness")


def run(options: Sharpness) -> int:
    """Measure every checkpoint, print a table, write what was asked for; 1 if anything has not converged."""
    _check(options)
    from scala_lab.commands.sharpness_measure import all_converged, measure_all
    from scala_lab.commands.sharpness_report import show_findings, write_findings
    from scala_lab.commands.sharpness_worker import measure_together
    from scala_lab.training.launch import WorkerFailure
    from scala_lab.training.world import check_devices, started_by_launcher

    check_devices(options.spec)
    together = options.spec.machine.workers > 1 and not started_by_launcher()
    try:
        findings, densities = (measure_together if together else measure_all)(options)
    except WorkerFailure as failure:
        print(f"scala-lab: error: {failure}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":
        show_findings(findings)
        write_findings(findings, densities, options.json_, options.out)
    return 0 if all(map(all_converged, findings)) else 1


def _check(options: Sharpness) -> None:
    check_checkpoints(options.checkpoints)
    check_distinct(options.checkpoints)
    check_samples(options.over, options.data)
    for name in ("repeats", "top_k", "workers"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    if options.max_products < options.top_k:
        raise UserError(f"--top-k {options.top_k} takes at least as many products: raise --max-products")
    if not 0 < options.tol < float("inf"):
        raise UserError(f"--tol must be positive, not {options.tol}")
    if options.solver == "pyhessian" and options.spec.machine.workers > 1:
        raise UserError("--solver pyhessian runs in one process: leave out --workers")
    if options.density and options.out is None:
        raise UserError("--density needs --out, the folder for its figure")
    check_new_file(options.json_)
    check_new_folder(options.out)
