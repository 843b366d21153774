"""`scala-lab architectures`: which architectures of transformers give the stock model's results here."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.equality import Comparison

EQUAL, REFUSED, WRONG = "equal to stock", "refused", "NOT EQUAL"


@dataclass(frozen=True)
class Architectures:
    """Compare training, evaluation and sharpness with the stock model, for every architecture of transformers.

    A tiny random classifier of each architecture is trained for a few steps, evaluated and measured, and each result is
    compared with a plain loop over the stock model that runs every row alone and unpadded, in float64. The exit code
    is 1 if any result that was not refused differs.

        scala-lab architectures                       # all of them, a few minutes
        scala-lab architectures bert gpt2 llama --markdown table.md
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Model types, such as bert or qwen2; default all that have a classifier."""
    markdown: Path | None = None
    """Write the table as Markdown."""
    json_: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Write the findings as JSON."""


def run(options: Architectures) -> int:
    """Compare, print a line per architecture as it is done, write what was asked for."""
    import torch
    import transformers

    from scala_lab.commands.checkpoints import check_new_file
    from scala_lab.files import write_text
    from scala_lab.models.architectures import MODEL_TYPES
    from scala_lab.models.loading import quiet_transformers

    for name in options.names:
        if name not in MODEL_TYPES:
            raise UserError(f"transformers {transformers.__version__} has no classifier of type {name!r}")
    check_new_file(options.json_)
    check_new_file(options.markdown)
    quiet_transformers()
    torch.set_num_threads(1)
    findings: dict[str, list[Comparison]] = {}
    for name in options.names or MODEL_TYPES:
        findings[name] = compare_architecture(name)
        print(f"{name:22}" + "  ".join(f"{one.use}: {_cell(one)}" for one in findings[name]), flush=True)
    summary = _summary(findings, transformers.__version__)
    print(summary)
    if options.markdown is not None:
        write_text(options.markdown, f"{summary}\n\n{_markdown(findings)}\n")
        print(f"table: {options.markdown}", file=sys.stderr)
    if options.json_ is not None:
        entries = [{"architecture": name, **vars(one)} for name, uses in findings.items() for one in uses]
        write_text(options.json_, json.dumps(entries, indent=1) + "\n")
    return 1 if any(_verdict(one) == WRONG for uses in findings.values() for one in uses) else 0


def compare_architecture(name: str) -> list[Comparison]:
    """The comparisons of one architecture's tiny classifier."""
    from scala_lab.equality import USES, Comparison, compare
    from scala_lab.models.architectures import WORDS, save_tiny

    with tempfile.TemporaryDirectory(prefix="scala-lab-") as folder:
        try:
            model = save_tiny(Path(folder) / "model", name)
        except UserError as error:
            return [Comparison(use, None, str(error)) for use in USES]
        return compare(model, WORDS, Path(folder))


def _verdict(one: Comparison) -> str:
    if one.difference is None:
        return REFUSED
    return EQUAL if one.equal else WRONG


def _cell(one: Comparison) -> str:
    if one.difference is None:
        return f"{REFUSED} ({one.refusal})"
    return f"{_verdict(one)} ({one.difference:.0e})"


def _summary(findings: dict[str, list[Comparison]], version: str) -> str:
    verdicts = [{_verdict(one) for one in uses} for uses in findings.values()]
    equal = sum(found == {EQUAL} for found in verdicts)
    wrong = sum(WRONG in found for found in verdicts)
    return (
        f"transformers {version}: {len(findings)} architectures, {equal} equal to stock in training, evaluation and "
        f"sharpness, {len(findings) - equal - wrong} refused in at least one of them, {wrong} not equal"
    )


def _markdown(findings: dict[str, list[Comparison]]) -> str:
    from scala_lab.equality import USES

    lines = [f"| architecture | {' | '.join(USES)} |", f"|---|{'---|' * len(USES)}"]
    lines += [f"| {name} | {' | '.join(_cell(one) for one in uses)} |" for name, uses in findings.items()]
    return "\n".join(lines)
