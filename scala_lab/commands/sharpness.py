"""`scala-lab sharpness`: the top Hessian eigenvalues of saved checkpoints, with evidence.

The options of `scala-lab sharpness`.

The curvature of checkpoints, as `scala-lab sharpness` was asked for it.

The findings of `scala-lab sharpness` as a table, as files and as figures.

Several workers measure together, each with its share of the rows.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import tyro
from rich.table import Table

from scala_lab.cli import result_console
from scala_lab.commands.checkpoints import (
    SampleOptions,
    check_checkpoints,
    check_distinct,
    check_new_file,
    check_new_folder,
    check_samples,
    load_with_samples,
    parse_with_run_data,
    short_names,
)
from scala_lab.config import DataSpec, MachineSpec, RunSpec
from scala_lab.curvature import EigenResult, HessianOperator, top_eigenpairs
from scala_lab.curvature.pyhessian_check import pyhessian_top
from scala_lab.curvature.spectrum import DensityResult, layer_eigenvalues, spectral_density, trace
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json
from scala_lab.processes import launched_workers
from scala_lab.training.distributed import World, join_world, run_workers, warn_of_crowded_cores
from scala_lab.training.progress import CountBar
from scala_lab.training.worker import work


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


def show_findings(findings: list[dict[str, Any]]) -> None:
    """Print one line per checkpoint, and one per layer where layers were asked for."""
    first = findings[0]
    table = Table(
        title=f"{first['task']}, {first['samples']} {first['rows']} rows, {first['solver']}, tol {first['tol']:g}"
    )
    table.add_column("checkpoint", overflow="fold")
    headings = ["eigenvalues", "residual", "products", "seconds", "loss"]
    headings += [name for name in ("smallest", "trace", "kappa_alpha") if name in first]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("converged", no_wrap=True)
    for finding in findings:
        table.add_row(
            finding["checkpoint"], *(_cell(finding, name) for name in headings), _sure(all_converged(finding))
        )
    result_console().print(table)
    if "layers" in first:
        layers = Table("layer", *(finding["checkpoint"] for finding in findings), title="top eigenvalue of each layer")
        for name in dict.fromkeys(name for finding in findings for name in finding["layers"]):
            cells = [finding["layers"].get(name) for finding in findings]
            layers.add_row(name, *("" if cell is None else _eigenvalue(cell) for cell in cells))
        result_console().print(layers)
    for finding in findings:
        if finding.get("note"):
            print(f"{finding['checkpoint']}: {finding['note']}", file=sys.stderr)


def write_findings(
    findings: list[dict[str, Any]], densities: dict[str, Any], json_file: Path | None, out: Path | None
) -> None:
    """Write JSON, and a folder with sharpness.csv and the figures, complete or not at all."""
    if json_file is not None:
        write_json(json_file, findings)
    if out is None:
        return
    import pandas

    from scala_lab.report.figures.curvature import density_plot, layer_bars, sharpness_bars
    from scala_lab.report.figures.style import save_figure

    names = short_names([Path(finding["checkpoint"]) for finding in findings])
    unit = findings[0]["loss_unit"]
    tops = pandas.DataFrame(_rows(findings))
    with new_folder(out) as folder:
        tops.to_csv(folder / "sharpness.csv", index=False)
        sharpest = tops[tops["rank"] == 1].replace({"checkpoint": names})
        save_figure(sharpness_bars(sharpest, unit=unit), folder / "sharpness")
        if "layers" in findings[0]:
            layers = pandas.DataFrame(_layer_rows(findings))
            layers.to_csv(folder / "layers.csv", index=False)
            save_figure(layer_bars(layers.replace({"checkpoint": names}), unit=unit), folder / "layers")
        for number, (checkpoint, density) in enumerate(densities.items(), start=1):
            title = f"Spectral density of the Hessian: {names[checkpoint]}"
            save_figure(density_plot(density, title=title, unit=unit), folder / f"density-{number}")
    print(f"report: {out}", file=sys.stderr)


def _cell(finding: dict[str, Any], heading: str) -> str:
    if heading == "eigenvalues":
        spread = finding["deviation"] or [None] * len(finding["eigenvalues"])
        return "\n".join(
            f"{value:.5g}" + ("" if error is None else f" ± {error:.2g}")
            for value, error in zip(finding["eigenvalues"], spread, strict=True)
        )
    if heading == "residual":
        return "\n".join(f"{value:.1e}" for value in finding["residuals"])
    if heading == "smallest":
        return _eigenvalue(finding["smallest"])
    if heading == "trace":
        found = finding["trace"]
        return _doubted(f"{found['value']:.5g} ± {found['error']:.2g}", found["converged"])
    if heading == "kappa_alpha":
        sure = all(layer["converged"] for layer in finding["layers"].values())
        return _doubted(f"{finding['kappa_alpha']:.3g}", sure)
    return {
        "products": lambda: str(finding["hvps"]),
        "seconds": lambda: f"{finding['seconds']:.1f}",
        "loss": lambda: f"{finding['loss']:.4f}",
    }[heading]()


def _eigenvalue(cell: dict[str, Any]) -> str:
    return _doubted(f"{cell['eigenvalue']:.5g}", cell["converged"])


def _doubted(shown: str, converged: bool) -> str:
    """A value, with a question mark where it has not converged."""
    return shown if converged else f"{shown} (?)"


def _sure(converged: bool) -> str:
    return "yes" if converged else "NO"


def _rows(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per checkpoint, set of rows and eigenvalue."""
    return [
        {
            "checkpoint": finding["checkpoint"],
            "set": number,
            "rank": rank,
            "eigenvalue": value,
            "residual": residual,
            "converged": residual <= finding["tol"],
        }
        for finding in findings
        for number, entry in enumerate(finding.get("sets", [finding]), start=1)
        for rank, (value, residual) in enumerate(zip(entry["eigenvalues"], entry["residuals"], strict=True), start=1)
    ]


def _layer_rows(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"checkpoint": finding["checkpoint"], "layer": name, **cell}
        for finding in findings
        for name, cell in finding["layers"].items()
    ]


def measure_together(options: Sharpness) -> Findings:
    """Start the workers and return what the first one found; all find the same."""
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as folder:
        Path(folder, "options").write_bytes(pickle.dumps(options))
        run_workers("scala_lab.commands.sharpness", {"folder": folder}, options.spec.machine)
        return pickle.loads(Path(folder, "findings").read_bytes())


def _measure_sharpness_worker(values: dict[str, Any]) -> None:

    folder = Path(values["folder"])
    findings = measure_all(pickle.loads((folder / "options").read_bytes()))
    if os.environ["RANK"] == "0":
        (folder / "findings").write_bytes(pickle.dumps(findings))


def parse(args: list[str]) -> Sharpness:
    """Flags; without --task, the data of the first run folder."""
    return parse_with_run_data(Sharpness, args, prog="scala-lab sharpness")


def run(options: Sharpness) -> int:
    """Measure every checkpoint, print a table, write what was asked for; 1 if anything has not converged."""
    _check(options)
    from scala_lab.training.distributed import WorkerFailure, check_devices, started_by_launcher

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


if __name__ == "__main__":
    work(sys.argv[1], _measure_sharpness_worker)
