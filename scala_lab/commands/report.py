"""`scala-lab report`: draw a report again from its own records."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from scala_lab.commands.study import print_outcome


@dataclass(frozen=True)
class Report:
    """Draw figures, tables, verdicts and page of a report again, from runs.jsonl and measurements.jsonl in its folder.

        scala-lab report reports/embedded
        scala-lab report sweep1

    Of a sweep, tables, figures and page are drawn from the runs that its store has so far.
    """

    folder: tyro.conf.Positional[Path]
    """What --out of `scala-lab study`, `scala-lab reproduce` or `scala-lab sweep` named."""


def run(options: Report) -> int:
    """Rebuild; exit code 1 if a study could not be analysed."""
    from scala_lab.sweep.grid import SweepFolder

    sweep = SweepFolder.read(options.folder)
    if sweep is not None:
        from scala_lab.commands.sweep import show_sweep

        return show_sweep(sweep)
    from scala_lab.report.build import rebuild_report

    return print_outcome(options.folder, rebuild_report(options.folder))
