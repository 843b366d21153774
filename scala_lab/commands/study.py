"""`scala-lab study`: run studies by name, or one of your own by its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from scala_lab.commands.sweep import SweepOptions, sweep_studies
from scala_lab.errors import UserError


@dataclass(frozen=True)
class RunStudies:
    """Train the runs that studies need, then write figures, tables, verdicts and a page.

        scala-lab study --list
        scala-lab study sharpness large_batch_methods
        scala-lab study docs/examples/my_study.py --out reports/mine
        scala-lab study sharpness --profile laptop --data-dir glue --dry-run

    Runs are kept in --store and shared between studies; an interrupted command goes on where it was.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of studies, or files of your own that hold a STUDY."""
    list_: Annotated[bool, tyro.conf.arg(name="list")] = False
    """List all studies and end."""
    sweep: SweepOptions = field(default_factory=SweepOptions)


def run(options: RunStudies) -> int:
    """List, plan, or train and report."""
    from scala_lab.study.discovery import find_study

    if options.list_:
        _print_list()
        return 0
    if not options.names:
        raise UserError("study needs a name, or the file of a study of your own: `scala-lab study --list` shows names")
    studies = {reference: find_study(reference) for reference in dict.fromkeys(options.names)}
    return sweep_studies(studies, options.sweep, ["study", *studies])


def _print_list() -> None:
    from rich.table import Table

    from scala_lab.commands.summary import result_console
    from scala_lab.study.discovery import all_studies

    table = Table("study", "in the paper", "question")
    for name, study in all_studies().items():
        table.add_row(name, study.source, study.question)
    result_console().print(table)
