"""The registry: which step function, optimizer and options each method name stands for.

Four step functions and three optimizers make every method. A recipe names one of each and the options in
which it differs from the step's defaults. Nothing here imports torch, so help texts and sweeps can read it
for free. A new method is one file with a step function and one line in `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from scala_lab.errors import UserError, nearest

STEP_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "plain": "scala_lab.methods.base:PlainStep",
        "scala": "scala_lab.methods.scala:ScalaStep",
        "rdrop": "scala_lab.methods.rdrop:RDropStep",
        "freelb": "scala_lab.methods.freelb:FreeLBStep",
    }
)
"""Where each step function lives, as `module:name`."""

STEP_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {},
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
        },
        "rdrop": {"alpha": 0.5},
        "freelb": {
            "masks": "shared",
            "adv_passes": 3,
            "adv_norm": "l2",
            "adv_lr": 0.1,
            "adv_init": 0.1,
            "adv_max_norm": 0.3,
        },
    }
)
"""The options each step function takes, with the values they have unless a recipe or the user says otherwise."""


@dataclass(frozen=True)
class Recipe:
    """A method by name."""

    name: str
    step: str
    optimizer: str
    description: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def option_values(self) -> dict[str, Any]:
        """All options of the step function with this recipe's values."""
        return {**STEP_DEFAULTS[self.step], **self.options}


_ALL = (
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
    Recipe("ngd", "plain", "ngd", "normalized gradient descent per layer, the theorem's update"),
)

RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in _ALL})

FREELB_PUBLISHED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "mnli": {"adv_lr": 0.1, "adv_init": 0.1, "adv_max_norm": 0.3},
        "qnli": {"adv_lr": 0.1, "adv_init": 0.2, "adv_max_norm": 0.2},
        "qqp": {"adv_lr": 0.2, "adv_init": 0.32, "adv_max_norm": 0.7},
        "sst2": {"adv_lr": 0.1, "adv_init": 1.0, "adv_max_norm": 0.6},
        "stsb": {"adv_lr": 0.1, "adv_init": 0.16, "adv_max_norm": 0.28},
    }
)
"""FreeLB's published settings per GLUE task (found for RoBERTa-large); other tasks take the step's defaults."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or an error that names the closest one."""
    if name not in RECIPES:
        raise UserError(f"unknown method {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]
