"""The registry of methods: a recipe names a step function, an optimizer, and the options that differ from the defaults.

A new method is one file with a step function, one line in `STEP_FUNCTIONS` and one recipe. This module does not import
torch, which help texts and sweeps need not wait for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scala_lab.errors import UserError, nearest

STEP_FUNCTIONS: Mapping[str, str] = {
    "plain": "scala_lab.methods.base:PlainStep",
    "scala": "scala_lab.methods.scala:ScalaStep",
    "rdrop": "scala_lab.methods.rdrop:RDropStep",
    "freelb": "scala_lab.methods.freelb:FreeLBStep",
    "sam": "scala_lab.methods.sam:SamStep",
}
"""Where each step function is defined."""

STEP_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "rdrop": {"delay": 0.0, "alpha": 0.5},
    "sam": {"sam_rho": 0.05, "sam_m": None, "sam_adaptive": False},
    "scala": {
        "delay": 5.0,
        "delay_rule": "fixed",
        "lambda": 1.0,
        "rho": 1e-4,
        "omega": 1e-5,
        "sigma": 1e-5,
        "pga_steps": 1,
        "pga": "auto",
        "ascent": "literal",
        "target": "LP",
        "noise": "pga",
        "masks": "independent",
        "label_gradient": False,
        "radius_unit": "absolute",
    },
    "freelb": {
        "masks": "shared",
        "adv_passes": 3,
        "adv_norm": "l2",
        "adv_lr": 0.1,
        "adv_init": 0.1,
        "adv_max_norm": 0.3,
        "adv_scale": 1.0,
        "radius_unit": "absolute",
    },
}
"""The options of each step function and their defaults, which a recipe or the user may override."""

MAX_FUSED_CLASSES = 3
"""With C classes the fused ascent needs C - 2 more backward passes: from four classes on it is no cheaper."""


@dataclass(frozen=True)
class Recipe:
    """A method: its step function, its optimizer and the options in which it differs from the step's defaults."""

    name: str
    step: str
    optimizer: str
    description: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def option_values(self) -> dict[str, Any]:
        """Return all options of the step function with this recipe's values."""
        return {**STEP_DEFAULTS[self.step], **self.options}


_RECIPES = (
    Recipe("plain", "plain", "adamw", "task loss, AdamW: the small- and large-batch baseline"),
    Recipe("lamb", "plain", "lamb", "task loss, LAMB's group-wise learning rates"),
    Recipe("scala", "scala", "lamb", "ScaLA with the paper's literal hyperparameters"),
    Recipe(
        "scala-effective",
        "scala",
        "lamb",
        "ScaLA with normalized ascent and a radius large enough for the noise to matter",
        {"ascent": "normalized", "rho": 1e-3, "omega": 1e-3, "masks": "shared", "delay": 3.0},
    ),
    Recipe(
        "two-draws",
        "scala",
        "lamb",
        "control without noise: the disagreement of two dropout draws alone",
        {"noise": "none", "masks": "independent"},
    ),
    Recipe("gaussian", "scala", "lamb", "control: Gaussian noise of size omega, no ascent", {"noise": "gaussian"}),
    Recipe("rdrop", "rdrop", "lamb", "R-Drop: two dropout draws that both learn the task and are drawn together"),
    Recipe("freelb", "freelb", "adamw", "FreeLB: K adversarial passes that all train the weights"),
    Recipe("sam", "sam", "adamw", "SAM: the gradient at the worst weights within a radius"),
    Recipe(
        "asam",
        "sam",
        "adamw",
        "ASAM: SAM with a radius relative to the size of each weight",
        {"sam_rho": 0.5, "sam_adaptive": True},
    ),
    Recipe("ngd", "plain", "ngd", "normalized gradient descent per layer, the theorem's update"),
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}

FREELB_PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "mnli": {"adv_lr": 0.1, "adv_init": 0.1, "adv_max_norm": 0.3},
    "qnli": {"adv_lr": 0.1, "adv_init": 0.2, "adv_max_norm": 0.2},
    "qqp": {"adv_lr": 0.2, "adv_init": 0.32, "adv_max_norm": 0.7},
    "sst2": {"adv_lr": 0.1, "adv_init": 1.0, "adv_max_norm": 0.6},
    "stsb": {"adv_lr": 0.1, "adv_init": 0.16, "adv_max_norm": 0.28},
}
"""FreeLB's published settings per GLUE task (tuned for RoBERTa-large); other tasks take the step's defaults."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe of that name, or raise an error that names the closest one."""
    if name not in RECIPES:
        raise UserError(f"unknown method {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]


def absolute_radii(options: Mapping[str, Any], embedding_norm: float, width: int) -> dict[str, Any]:
    """Return the options of a step function, which knows absolute radii only, from those of a recipe.

    With `radius_unit="embedding"` noise is measured in word embeddings: u is the median norm of the rows of the
    pretrained table, of width D. ScaLA's omega and rho are per coordinate, in units of u / sqrt(D): with omega = 1 the
    noise of a token is as long as a word embedding if all its coordinates are at the bound. Literal ascent, rho * g,
    takes the square, as g is per unit too. FreeLB's radii are lengths, in units of u (linf: u / sqrt(D)), and all of
    them are multiplied by adv_scale. The start sigma is no radius and stays absolute.
    """
    result = dict(options)
    relative, scale = result.pop("radius_unit", "absolute") == "embedding", result.pop("adv_scale", 1.0)
    length, coordinate = (embedding_norm, embedding_norm / math.sqrt(width)) if relative else (1.0, 1.0)
    if "omega" in result:
        result["omega"] *= coordinate
        result["rho"] *= coordinate if result["ascent"] == "normalized" else coordinate**2
    for name in ("adv_lr", "adv_init", "adv_max_norm"):
        if name in result:
            result[name] *= scale * (length if result["adv_norm"] == "l2" else coordinate)
    return result


def chosen_pga(options: Mapping[str, Any], outputs: int, drops_out: bool) -> Literal["exact", "fused"] | None:
    """Return how a step computes the gradient of ScaLA's ascent; None if it has no ascent.

    - exact: by an inner forward and backward pass, in float32 also under autocast; always valid.
    - fused: from the backward of the clean pass, to first order in the random start. It is valid for one ascent step
      whose noisy passes have the dropout masks of the clean pass: with independent masks the gradient shows the
      disagreement of the masks, not the effect of the noise.

    The option `auto` is fused where that is valid and cheaper. `outputs` is the size of the head, 1 for regression.
    """
    pga = options.get("pga")
    if pga is None:
        return None
    obstacle = _obstacle_to_fused(options, outputs, drops_out)
    if pga == "fused" and obstacle:
        raise UserError(f"--pga fused {obstacle}; --pga auto takes the exact way there")
    if options["noise"] != "pga":
        return None
    not_cheaper = outputs > 2 and options["label_gradient"]
    return "exact" if pga == "exact" or obstacle or (pga == "auto" and not_cheaper) else "fused"


def _obstacle_to_fused(options: Mapping[str, Any], outputs: int, drops_out: bool) -> str | None:
    if options["noise"] != "pga":
        return f"needs noise pga, not {options['noise']}"
    if options["pga_steps"] != 1:
        return f"is for one ascent step, not pga-steps {options['pga_steps']}"
    if options["masks"] == "independent" and drops_out:
        return "needs masks shared or off, or a model without dropout"
    if options["target"] == "LP" and outputs > MAX_FUSED_CLASSES:
        return f"is for regression and up to {MAX_FUSED_CLASSES} classes, not {outputs}"
    return None
