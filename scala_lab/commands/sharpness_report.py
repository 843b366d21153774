"""The findings of `scala-lab sharpness` as a table, as files and as figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from scala_lab.commands.checkpoints import short_names
from scala_lab.commands.sharpness_measure import all_converged
from scala_lab.commands.summary import result_console
from scala_lab.files import new_folder, write_json


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

    from scala_lab.report.curvature_figures import density_plot, layer_bars, sharpness_bars
    from scala_lab.report.saving import save_figure

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
