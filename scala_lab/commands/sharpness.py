"""`scala-lab sharpness`: the top Hessian eigenvalues of saved checkpoints, with evidence."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from scala_lab.cli import check_checkpoints, check_new_files, check_new_folder, result_console
from scala_lab.curvature.checkpoint import SharpnessOptions, all_converged, measure_by_workers, measure_sharpness
from scala_lab.errors import UserError, check_at_least
from scala_lab.files import new_folder, write_json
from scala_lab.machine import started_by_launcher
from scala_lab.training.distributed import WorkerFailure, check_devices


@dataclass(frozen=True)
class Sharpness(SharpnessOptions):
    """How sharp checkpoints are: the largest eigenvalues of the Hessian of their task loss.

    The loss is the plain task loss over a fixed, seeded set of rows, in eval mode. Every eigenvalue comes with
    its residual ||Hv - lambda v|| / |lambda| and counts as converged only if that is at most --tol. Without --task
    the rows are those that the first run folder was trained on.

        scala-lab sharpness runs/a runs/b
        scala-lab sharpness model --task sst2 --data-dir glue --samples 256 --top-k 5 --repeats 4 --out sharpness
    """

    json_: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Write the findings as JSON."""
    out: Path | None = None
    """Folder for the table (CSV) and figures (PNG and SVG)."""


def run(options: Sharpness) -> int:
    """Measure every checkpoint, print a table, write files; 1 if anything has not converged."""
    _check(options)
    check_devices(options.machine)
    try:
        by_workers = options.machine.workers > 1 and not started_by_launcher()
        records, densities = (measure_by_workers if by_workers else measure_sharpness)(options)
    except WorkerFailure as failure:
        print(f"scala-lab: error: {failure}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":
        show_records(records)
        if options.json_ is not None:
            write_json(options.json_, records)
        if options.out is not None:
            _write_folder(records, densities, options.out)
    return 0 if all(map(all_converged, records)) else 1


def _check(options: Sharpness) -> None:
    check_checkpoints(options.checkpoints, distinct=True)
    options.over.check(options.data)
    check_at_least(1, repeats=options.repeats, top_k=options.top_k, workers=options.workers)
    if options.max_products < options.top_k:
        raise UserError(f"--top-k {options.top_k} takes at least as many products: raise --max-products")
    if not 0 < options.tol < float("inf"):
        raise UserError(f"--tol must be positive, not {options.tol}")
    if options.solver == "pyhessian" and options.machine.workers > 1:
        raise UserError("--solver pyhessian runs in one process: leave out --workers")
    if options.density and options.out is None:
        raise UserError("--density needs --out, the folder for its figure")
    check_new_files(options.json_)
    check_new_folder(options.out)


def show_records(records: list[dict[str, Any]]) -> None:
    """Print one line per checkpoint, and one per layer where layers were measured."""
    first = records[0]
    title = f"{first['task']}, {first['samples']} {first['rows']} rows, {first['solver']}, tol {first['tol']:g}"
    table = Table(title=title)
    table.add_column("checkpoint", overflow="fold")
    for heading in _cells(first):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("converged", no_wrap=True)
    for record in records:
        table.add_row(record["checkpoint"], *_cells(record).values(), "yes" if all_converged(record) else "NO")
    result_console().print(table)
    if "layers" in first:
        layers = Table("layer", *(record["checkpoint"] for record in records), title="top eigenvalue of each layer")
        for name in dict.fromkeys(name for record in records for name in record["layers"]):
            cells = [record["layers"].get(name) for record in records]
            layers.add_row(name, *("" if cell is None else _eigenvalue(cell) for cell in cells))
        result_console().print(layers)
    for record in records:
        if record.get("note"):
            print(f"{record['checkpoint']}: {record['note']}", file=sys.stderr)


def _cells(record: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a checkpoint's line by heading."""
    eigenvalues = [f"{value:.5g}" for value in record["eigenvalues"]]
    if record["deviation"]:
        pairs = zip(eigenvalues, record["deviation"], strict=True)
        eigenvalues = [f"{value} ± {deviation:.2g}" for value, deviation in pairs]
    residuals = [f"{value:.1e}" for value in record["residuals"]]
    cells = {"eigenvalues": "\n".join(eigenvalues), "residual": "\n".join(residuals), "products": str(record["hvps"])}
    cells |= {"seconds": f"{record['seconds']:.1f}", "loss": f"{record['loss']:.4f}"}
    if "smallest" in record:
        cells["smallest"] = _eigenvalue(record["smallest"])
    if "trace" in record:
        trace = record["trace"]
        cells["trace"] = _marked(f"{trace['value']:.5g} ± {trace['error']:.2g}", trace["converged"])
    if "kappa_alpha" in record:
        converged = all(layer["converged"] for layer in record["layers"].values())
        cells["kappa_alpha"] = _marked(f"{record['kappa_alpha']:.3g}", converged)
    return cells


def _eigenvalue(cell: dict[str, Any]) -> str:
    return _marked(f"{cell['eigenvalue']:.5g}", cell["converged"])


def _marked(text: str, converged: bool) -> str:
    return text if converged else f"{text} (?)"


def _write_folder(records: list[dict[str, Any]], densities: dict[str, Any], out: Path) -> None:
    """Write a folder with tables and figures, complete or not at all."""
    import pandas

    from scala_lab.curvature.checkpoint import short_names
    from scala_lab.report.figures.curvature import density_plot, layer_bars, sharpness_bars
    from scala_lab.report.figures.style import save_figure

    names = short_names([Path(record["checkpoint"]) for record in records])
    unit = records[0]["loss_unit"]
    rows = [
        (record["checkpoint"], number, rank, value, residual, residual <= record["tol"])
        for record in records
        for number, entry in enumerate(record.get("sets", [record]), start=1)
        for rank, (value, residual) in enumerate(zip(entry["eigenvalues"], entry["residuals"], strict=True), start=1)
    ]
    columns = ["checkpoint", "set", "rank", "eigenvalue", "residual", "converged"]
    eigenvalues = pandas.DataFrame(rows, columns=columns)
    with new_folder(out) as folder:
        eigenvalues.to_csv(folder / "sharpness.csv", index=False)
        sharpest = eigenvalues[eigenvalues["rank"] == 1].replace({"checkpoint": names})
        save_figure(sharpness_bars(sharpest, unit=unit), folder / "sharpness")
        if "layers" in records[0]:
            layers = pandas.DataFrame(
                {"checkpoint": record["checkpoint"], "layer": name, **cell}
                for record in records
                for name, cell in record["layers"].items()
            )
            layers.to_csv(folder / "layers.csv", index=False)
            save_figure(layer_bars(layers.replace({"checkpoint": names}), unit=unit), folder / "layers")
        for number, (checkpoint, density) in enumerate(densities.items(), start=1):
            title = f"Spectral density of the Hessian: {names[checkpoint]}"
            save_figure(density_plot(density, title=title, unit=unit), folder / f"density-{number}")
    print(f"report: {out}", file=sys.stderr)
