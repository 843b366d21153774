"""`scala-lab doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from scala_lab.commands.examination import Finding, examine


@dataclass(frozen=True)
class Doctor:
    """Show what this machine has: devices, threads, memory, packages, reachable models and data.

    The exit code is 0 unless something required is missing.
    """

    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a JSON list instead of a table."""


def run(options: Doctor) -> int:
    """Print the report."""
    findings = examine()
    if options.json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif importlib.util.find_spec("rich"):
        _print_table(findings)
    else:
        print("\n".join(f"{one.status:8}{one.name}: {one.value} {one.advice}".rstrip() for one in findings))
    return 1 if any(finding.status == "missing" for finding in findings) else 0


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "absent": "yellow", "missing": "bold red"}
    table = Table("", "", "found", "what to do", box=None, pad_edge=False)
    topic = ""
    for one in findings:
        if topic and one.topic != topic:
            table.add_row()
        topic = one.topic
        colour = colours[one.status]
        table.add_row(f"[{colour}]{one.status}[/]", one.name, escape(one.value), escape(one.advice))
    Console().print(table)
