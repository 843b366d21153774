"""`scala-lab audit`: does a training's gradient depend on how its batch is cut?"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scala_lab.cli import check_new_files, result_console
from scala_lab.errors import UserError
from scala_lab.files import write_text


@dataclass(frozen=True)
class Audit:
    """Say whether a gradient depends on micro-batch, padding, last window or processes, and by what factor.

    The gradient of an optimizer step should be the mean over its rows, however they are cut. This takes the step of
    transformers.Trainer over a few rows in several cuts, in float64 and without dropout, and compares with the rows
    one by one. The exit code is 1 if the gradient depends on the cut.

        scala-lab audit bert-base-uncased              # stock Trainer
        scala-lab audit my-model my_trainer.py         # the subclass of Trainer in a file of your own, which is run
        scala-lab audit my-model --method scala        # our drop-in for Trainer
    """

    model: tyro.conf.Positional[str]
    """A hub name, a folder, or `embedded`."""
    file: tyro.conf.Positional[Path | None] = None
    """Python file that defines a subclass of transformers.Trainer, the last one counts; default stock Trainer."""
    method: str | None = None
    """Audit ScalaTrainer with this method in place of a Trainer."""
    processes: bool = True
    """Also start two processes."""
    json_: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Write the findings as JSON."""


def run(options: Audit) -> int:
    """Audit, print a table, and return 1 if the gradient depends on the cut."""
    from scala_lab.integrations.audit import TOLERANCE, Subject, audit
    from scala_lab.models.loading import quiet_transformers

    if options.file is not None and options.method is not None:
        raise UserError("--method audits ScalaTrainer: leave out the file, or leave out --method")
    check_new_files(options.json_)
    quiet_transformers()
    subject = Subject(options.model, options.file, options.method)
    subject.trainer()
    findings = list(audit(subject, options.processes))
    table = Table("rows of the step", "factor", "difference", "the gradient")
    for finding in findings:
        verdict = f"depends on {finding.cut.about}" if finding.depends else "is the mean over its rows"
        table.add_row(finding.cut.text, f"{finding.factor:.4g}", f"{finding.difference:.1e}", verdict)
    console = result_console()
    console.print(table)
    flagged = dict.fromkeys(finding.cut.about for finding in findings if finding.depends)
    says = f"depends on {', '.join(flagged)}" if flagged else f"does not depend on the cut, to {TOLERANCE:g}"
    console.print(f"{subject.name}: the gradient {says}.", highlight=False, markup=False)
    if options.json_ is not None:
        write_text(options.json_, json.dumps([finding.record() for finding in findings], indent=1) + "\n")
    return 1 if flagged else 0
