"""What a step and a run cost, in forward passes per sample with a backward counted as two.

This module does not import torch: plans and tables ask it for costs.
"""

from collections.abc import Mapping
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.data.tasks import TASKS
from scala_lab.methods.recipes import chosen_pga, find_recipe

PLAIN = 3.0  # cost of a plain step: one forward and one backward pass


def forward_passes(record: Mapping[str, Any]) -> float:
    """Return the cost of a run from its record, in forward passes over the training rows."""
    spec = RunSpec.from_dict(record["spec"])
    rows = record["samples"]["train"]
    seen = rows * spec.optim.epochs if spec.optim.max_steps is None else record["steps_done"] * spec.batches.batch_size
    noised = record.get("counts", {}).get("noised_samples", 0) + record.get("counts", {}).get("skipped_noise", 0)
    plain, noisy = passes_per_sample(spec, record.get("outputs"))
    return (plain * (seen - noised) + noisy * noised) / rows


def passes_per_sample(spec: RunSpec, outputs: int | None = None) -> tuple[float, float]:
    """Return the cost of a sample in a step without noise, and in a step with noise.

    All steps of FreeLB cost 3 for each of its K passes, those of SAM, and of R-Drop after its delay, 6. ScaLA:
    `noisy_passes`.
    `outputs` is the size of the model's head; default as the task's registry says, or two for a user's own file.
    """
    spec = spec.resolved()
    recipe = spec.recipe
    step = find_recipe(recipe.method).step
    if step in ("freelb", "sam"):
        cost = PLAIN * (recipe.adv_passes or 2)
        return cost, cost
    if step in ("plain", "rdrop"):
        return PLAIN, PLAIN * (2 if step == "rdrop" else 1)
    if outputs is None:
        outputs = TASKS[spec.data.task].outputs if spec.data.task in TASKS else 1 if spec.data.regression else 2
    drops_out, autocast = spec.encoder.dropout != 0, spec.machine.precision in ("bf16", "fp16")
    return PLAIN, noisy_passes(recipe.options, outputs, drops_out, autocast)


def noisy_passes(options: Mapping[str, Any], outputs: int, drops_out: bool, autocast: bool = False) -> float:
    """Return the cost of a sample in a ScaLA step with noise, in forward passes F; see `chosen_pga` for the arguments.

    - 6F for the forward and backward of the clean and the adversarial pass.
    - The exact ascent adds 2F per ascent step, a forward and a backward for the noise alone, and under autocast F for
      the clean prediction in float32.
    - The fused ascent adds F for each further backward through the clean graph: one with three classes, and one where
      the backward of f has to wait (`label_gradient`).
    """
    clean_and_adversarial = 6.0
    if options["noise"] != "pga":
        return clean_and_adversarial
    if chosen_pga(options, outputs, drops_out) == "exact":
        label = float(autocast and options["target"] == "LP")
        return clean_and_adversarial + label + 2.0 * options["pga_steps"]
    further = max(0, outputs - 2) if options["target"] == "LP" else 0
    return clean_and_adversarial + further + float(options["label_gradient"])
