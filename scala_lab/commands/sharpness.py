"""`scala-lab sharpness`: the top Hessian eigenvalues of saved checkpoints, with evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from scala_lab.commands.checkpoints import check_checkpoints, check_new_file, check_new_folder, data_of_run
from scala_lab.commands.flags import parse_flags
from scala_lab.errors import UserError
from scala_lab.spec import DataSpec, RunSpec


@dataclass(frozen=True)
class Sharpness:
    """How sharp checkpoints are: the largest eigenvalues of the Hessian of their task loss.

    scala-lab sharpness runs/a runs/b
    scala-lab sharpness model --task sst2 --data-dir glue --samples 256 --top-k 5 --repeats 4 --out sharpness

    The loss is the plain task loss over a fixed, seeded set of rows, in eval mode. Every eigenvalue comes with
    its residual ||Hv - lambda v|| / |lambda| and counts as converged only if that is at most --tol. Without --task
    the rows are those that the first run folder was trained on.
    """

    checkpoints: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, or folders that hold config.json and model.safetensors."""
    data: DataSpec = field(default_factory=DataSpec)
    samples: int = 256
    """Rows the Hessian is taken over."""
    rows: Literal["train", "eval"] = "train"
    """Take it over training rows, or over the evaluation rows."""
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
    micro_batch: int = 64
    """Rows that run at once; changes speed and memory, not the result."""
    memory: float = 2.0
    """GiB of gradient graphs to keep, which makes products faster; the rest is streamed."""
    precision: Literal["float32", "float64"] = "float32"
    """Of weights and vectors."""
    seed: int = 0
    """Of the choice of rows and of the solver's random start."""
    threads: int = 0
    """CPU threads; 0 for all cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one."""
    json_: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Write the findings as JSON."""
    out: Path | None = None
    """Folder for the table (CSV) and figures (PNG and SVG)."""


def parse(args: list[str]) -> Sharpness:
    """Flags; without --task, the data of the first run folder."""
    options = parse_flags(Sharpness, args, prog="scala-lab sharpness")
    if any(arg.split("=")[0] == "--task" for arg in args):
        return options
    known = next((data for data in map(data_of_run, options.checkpoints) if data is not None), None)
    if known is None:
        return options
    return parse_flags(Sharpness, args, prog="scala-lab sharpness", default=Sharpness(data=known))


def run(options: Sharpness) -> int:
    """Measure every checkpoint, print a table, write what was asked for; 1 if anything has not converged."""
    _check(options)
    import torch

    from scala_lab.commands.product_bar import ProductBar
    from scala_lab.commands.sharpness_measure import measure
    from scala_lab.commands.sharpness_report import show_findings, write_findings

    if options.threads:
        torch.set_num_threads(options.threads)
    findings: list[dict[str, Any]] = []
    densities: dict[str, Any] = {}
    with ProductBar() as bar:
        for checkpoint in options.checkpoints:
            finding, density = measure(options, checkpoint, bar)
            findings.append(finding)
            if density is not None:
                densities[str(checkpoint)] = density
    show_findings(findings)
    write_findings(findings, densities, options.json_, options.out)
    return 0 if all(finding["converged"] for finding in findings) else 1


def _check(options: Sharpness) -> None:
    check_checkpoints(options.checkpoints)
    for name in ("samples", "repeats", "top_k", "max_products"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    for name in ("memory", "threads", "seed"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name} must be at least 0, not {getattr(options, name)}")
    if not 0 < options.tol < float("inf"):
        raise UserError(f"--tol must be positive, not {options.tol}")
    RunSpec(data=options.data).override(micro_batch=options.micro_batch).resolved()
    if options.density and options.out is None:
        raise UserError("--density needs --out, the folder for its figure")
    check_new_file(options.json_)
    check_new_folder(options.out)
