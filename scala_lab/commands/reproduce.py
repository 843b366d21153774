"""`scala-lab reproduce`: the comparison that the suite is about, on the embedded default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scala_lab.spec import RunSpec

METHODS = ("plain", "lamb", "scala")


@dataclass(frozen=True)
class Reproduce:
    """Train plain, LAMB and ScaLA on the embedded task and print them side by side.

    Runs that already finished are not trained again; interrupted ones go on where they were.
    """

    profile: Literal["embedded"] = "embedded"
    """Which models and data: embedded needs no download."""
    out: Path = Path("reports/embedded")
    """Where the comparison goes."""
    runs: Path = Path("runs")
    """Where the runs are kept."""
    threads: int | None = None
    """CPU threads per run; default all cores."""


def run(options: Reproduce) -> int:
    """Train what is missing, then draw the table."""
    import pandas

    from scala_lab.commands.summary import comparison_rows, comparison_table, result_console
    from scala_lab.files import write_text
    from scala_lab.training import train

    results = []
    for method in METHODS:
        spec = RunSpec.of(method=method, threads=options.threads)
        results.append(train(spec, options.runs / spec.resolved().name, resume=True, progress=True))
    result_console().print(comparison_table(results))
    frame = pandas.DataFrame(comparison_rows(results))
    write_text(options.out / "tables" / "comparison.csv", frame.to_csv(index=False))
    print(f"report: {options.out / 'tables' / 'comparison.csv'}")
    return 0 if all(result.status == "finished" for result in results) else 1
