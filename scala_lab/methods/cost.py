"""What a step and a run cost, in forward passes per sample with a backward counted as two.

Which way ScaLA's first ascent step finds its gradient, and what a step with noise costs.

exact: an inner forward and backward pass, for every head, number of steps T and kind of dropout masks; in float32 also
under autocast.
fused: the clean pass's own backward gives it, to first order in the random start (see fused.py). It holds for one
ascent step, and only where the noisy passes have the clean pass's dropout masks: with independent masks the
disagreement of the masks, not the noise, is what the gradient sees, and the two directions differ.

Nothing here imports torch: costs are asked for by plans and tables.

What a run costs, in forward passes per sample, a backward counted as two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from scala_lab.config import DataSpec, RunSpec
from scala_lab.data.tasks import TASKS
from scala_lab.errors import UserError
from scala_lab.methods.recipes import find_recipe

MOST_CLASSES = 3
"""With C classes the clean graph is pulled back through C - 2 more times: from four on that is no cheaper."""


def chosen_pga(options: Mapping[str, Any], outputs: int, drops_out: bool) -> Literal["exact", "fused"] | None:
    """The way that `pga` stands for: as asked for, or with `auto` the fused one wherever it holds and is cheaper.

    None for step functions that have no such option, and for noise without ascent.

    Args:
        options: Of the step function.
        outputs: Of the model's head, 1 for regression.
        drops_out: Whether the model has dropout.

    Raises:
        UserError: `fused` was asked for where it does not hold.
    """
    asked = options.get("pga")
    if asked is None:
        return None
    obstacle = _obstacle(options, outputs, drops_out)
    if asked == "fused" and obstacle:
        raise UserError(f"--pga fused {obstacle}; --pga auto takes the exact way there")
    if options["noise"] != "pga":
        return None
    dearer = outputs > 2 and options["label_gradient"]
    if asked == "exact" or obstacle or (asked == "auto" and dearer):
        return "exact"
    return "fused"


def _obstacle(options: Mapping[str, Any], outputs: int, drops_out: bool) -> str | None:
    if options["noise"] != "pga":
        return f"needs noise pga, not {options['noise']}"
    if options["pga_steps"] != 1:
        return f"is for one ascent step, not pga-steps {options['pga_steps']}"
    if options["masks"] == "independent" and drops_out:
        return "needs masks shared or off, or a model without dropout"
    if options["target"] == "LP" and outputs > MOST_CLASSES:
        return f"is for regression and up to {MOST_CLASSES} classes, not {outputs}"
    return None


def noisy_passes(options: Mapping[str, Any], outputs: int, drops_out: bool, autocast: bool = False) -> float:
    """Cost of a sample in a step with noise, in forward passes F; a backward for weights and inputs counts 2F.

    Clean and adversarial pass, forward and backward: 6F. The exact way adds F forward and F backward (for the noise
    alone) per ascent step, and under autocast F for a label in float32. The fused way adds F for each further pull
    through the clean graph: one with three classes, and one where the clean graph has to wait for the label's gradient.
    """
    clean_and_adversarial = 6.0
    if options["noise"] != "pga":
        return clean_and_adversarial
    if chosen_pga(options, outputs, drops_out) == "exact":
        label = float(autocast and options["target"] == "LP")
        return clean_and_adversarial + label + 2.0 * options["pga_steps"]
    further = max(0, outputs - 2) if options["target"] == "LP" else 0
    return clean_and_adversarial + further + float(options["label_gradient"])


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
