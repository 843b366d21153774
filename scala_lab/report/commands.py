"""Command lines that a report shows: how to get a study again, and a single run of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from scala_lab.methods.recipes import find_recipe
from scala_lab.report.manifest import Manifest
from scala_lab.spec import RunSpec
from scala_lab.spec_fields import leaves


def study_command(manifest: Manifest, reference: str) -> str:
    """The command whose runs a study of the report is drawn from."""
    words = ["scala-lab", "study", reference, "--profile", manifest.profile]
    for flag, value in (("--data-dir", manifest.data_dir), ("--model", manifest.model)):
        words += [flag, value] if value else []
    return shlex.join(words)


def train_command(spec: Mapping[str, Any]) -> str:
    """The command that trains one run of a report, with the flags in which it differs from the defaults.

    Threads and device are always there: their defaults depend on the machine.

    Args:
        spec: As in the run's record.
    """
    run = RunSpec.from_dict(dict(spec))
    plain = RunSpec.of(
        method=run.recipe.method, task=run.data.task, optimizer=run.optim.optimizer, device=run.machine.device
    )
    defaults = {leaf.name: leaf.value for leaf in leaves(plain.resolved())}
    defaults |= {"optimizer": find_recipe(run.recipe.method).optimizer, "threads": None, "device": None}
    words = ["scala-lab", "train", "--task", run.data.task, "--method", run.recipe.method]
    for leaf in leaves(run):
        if leaf.name not in ("task", "method") and leaf.value != defaults[leaf.name]:
            words += _flag(leaf.name, leaf.value, optional=leaf.part == "recipe")
    return shlex.join(words)


def _flag(name: str, value: Any, *, optional: bool) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool) and not optional:
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}", *value]
    if isinstance(value, float):
        short = f"{value:g}"
        return [f"--{flag}", short if float(short) == value else repr(value)]
    return [f"--{flag}", str(value)]
