"""The options of `scala-lab sharpness`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scala_lab.commands.samples import SampleOptions
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
