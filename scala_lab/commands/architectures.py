"""`scala-lab architectures`: which architectures of transformers give the stock model's results here."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from scala_lab.cli import check_new_files
from scala_lab.errors import UserError
from scala_lab.files import write_text


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
    """Compare, print a line per architecture as it is done, and write the files that were requested."""
    import torch
    import transformers

    from scala_lab.equality import MEASURES, Comparison, compare_architecture
    from scala_lab.models.architectures import MODEL_TYPES
    from scala_lab.models.loading import quiet_transformers

    for name in options.names:
        if name not in MODEL_TYPES:
            raise UserError(f"transformers {transformers.__version__} has no classifier of type {name!r}")
    check_new_files(options.json_, options.markdown)
    quiet_transformers()
    torch.set_num_threads(1)
    results: dict[str, list[Comparison]] = {}
    lines = [f"| architecture | {' | '.join(MEASURES)} |", f"|---|{'---|' * len(MEASURES)}"]
    for name in dict.fromkeys(options.names or MODEL_TYPES):
        results[name] = compare_architecture(name)
        print(f"{name:22}" + "  ".join(f"{use.use}: {use}" for use in results[name]), flush=True)
        lines.append(f"| {name} | {' | '.join(map(str, results[name]))} |")
    equal = sum(all(use.equal for use in uses) for uses in results.values())
    wrong = sum(any(use.difference is not None and not use.equal for use in uses) for uses in results.values())
    summary = (
        f"transformers {transformers.__version__}: {len(results)} architectures, {equal} equal to stock in training, "
        f"evaluation and sharpness, {len(results) - equal - wrong} refused in at least one of them, {wrong} not equal"
    )
    print(summary)
    if options.markdown is not None:
        write_text(options.markdown, "\n".join([summary, "", *lines, ""]))
        print(f"table: {options.markdown}", file=sys.stderr)
    if options.json_ is not None:
        entries = [{"architecture": name, **vars(use)} for name, uses in results.items() for use in uses]
        write_text(options.json_, json.dumps(entries, indent=1) + "\n")
    return 1 if wrong else 0
