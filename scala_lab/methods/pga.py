"""Which way ScaLA's first ascent step finds its gradient, and what a step with noise costs.

exact: an inner forward and backward pass, for every head, number of steps T and kind of dropout masks; in float32 also
under autocast.
fused: the clean pass's own backward gives it, to first order in the random start (see fused.py). It holds for one
ascent step, and only where the noisy passes have the clean pass's dropout masks: with independent masks the
disagreement of the masks, not the noise, is what the gradient sees, and the two directions differ.

Nothing here imports torch: costs are asked for by plans and tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from scala_lab.errors import UserError

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
