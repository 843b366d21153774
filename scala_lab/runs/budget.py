"""What a run costs, in forward passes per sample, a backward counted as two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scala_lab.methods.pga import noisy_passes
from scala_lab.methods.recipes import find_recipe
from scala_lab.spec import DataSpec, RunSpec
from scala_lab.tasks.registry import TASKS

PLAIN = 3.0
"""One forward and one backward pass."""


def passes_per_sample(spec: RunSpec, outputs: int | None = None) -> tuple[float, float]:
    """Cost of a sample in a step without noise, and in one with noise.

    FreeLB: 3 for each of its K passes, R-Drop: 3 for each of its two, in every step. ScaLA: see `noisy_passes`.

    Args:
        spec: The run.
        outputs: Of the model's head, where that is known; else as the task's registry says, or two for a file of the
            user's own.
    """
    spec = spec.resolved()
    recipe = spec.recipe
    step = find_recipe(recipe.method).step
    if step in ("freelb", "rdrop"):
        cost = PLAIN * (recipe.adv_passes or 2)
        return cost, cost
    if step == "plain":
        return PLAIN, PLAIN
    drops_out, autocast = spec.encoder.dropout != 0, spec.machine.precision == "bf16"
    return PLAIN, noisy_passes(recipe.options, outputs or _outputs(spec.data), drops_out, autocast)


def _outputs(data: DataSpec) -> int:
    if data.task in TASKS:
        return TASKS[data.task].outputs
    return 1 if data.regression else 2


def forward_passes(record: Mapping[str, Any]) -> float:
    """A run's cost in forward passes over the training rows, a backward counted as two.

    A plain step costs 3 passes over its samples. A step with noise costs what its step function's card says.
    """
    spec = RunSpec.from_dict(record["spec"])
    rows = record["samples"]["train"]
    seen = rows * spec.optim.epochs if spec.optim.max_steps is None else record["steps_done"] * spec.batches.batch_size
    noised = record.get("counts", {}).get("noised_samples", 0) + record.get("counts", {}).get("skipped_noise", 0)
    plain, noisy = passes_per_sample(spec, record.get("outputs"))
    return (plain * (seen - noised) + noisy * noised) / rows
