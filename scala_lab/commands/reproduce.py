"""`scala-lab reproduce`: all studies, all claims, one report."""

from dataclasses import dataclass, field

from scala_lab.commands.study import StudyOptions, sweep_studies


@dataclass(frozen=True)
class Reproduce:
    """Train what all studies need, then write every figure, table and verdict, and a page that shows them.

        scala-lab reproduce
        scala-lab reproduce --profile laptop --data-dir glue --model models/minilm --dry-run

    A run that several studies need is trained once. An interrupted command goes on where it was.
    """

    sweep: StudyOptions = field(default_factory=StudyOptions)


def run(options: Reproduce) -> int:
    """Sweep over all studies and report."""
    from scala_lab.study.api import all_studies

    return sweep_studies(all_studies(), options.sweep, ["reproduce"])
