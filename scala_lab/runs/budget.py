"""What a run costs, in forward passes per sample, a backward counted as two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scala_lab.methods.recipes import find_recipe
from scala_lab.spec import RunSpec

PLAIN = 3.0
"""One forward and one backward pass."""


def passes_per_sample(spec: RunSpec) -> tuple[float, float]:
    """Cost of a sample in a step without noise, and in one with noise.

    ScaLA with T ascent steps: clean forward 1, T times inner forward 1 and backward 1 (for the noise alone),
    adversarial forward 1, backward through the adversarial pass 2, and through the clean one 2. Without ascent the
    inner passes fall away. FreeLB: 3 for each of its K passes, in every step.
    """
    recipe = spec.resolved().recipe
    step = find_recipe(recipe.method).step
    if step == "freelb":
        cost = PLAIN * (recipe.adv_passes or 1)
        return cost, cost
    if step == "plain":
        return PLAIN, PLAIN
    inner = 2.0 * (recipe.pga_steps or 1) if recipe.noise == "pga" else 0.0
    return PLAIN, 2 * PLAIN + inner


def forward_passes(record: Mapping[str, Any]) -> float:
    """A run's cost in forward passes over the training rows, a backward counted as two.

    A plain step costs 3 passes over its samples. A step with noise costs what its step function's card says.
    """
    spec = RunSpec.from_dict(record["spec"])
    rows = record["samples"]["train"]
    seen = rows * spec.optim.epochs if spec.optim.max_steps is None else record["steps_done"] * spec.batches.batch_size
    noised = record.get("counts", {}).get("noised_samples", 0) + record.get("counts", {}).get("skipped_noise", 0)
    plain, noisy = passes_per_sample(spec)
    return (plain * (seen - noised) + noisy * noised) / rows
