"""Method variants, the arms of comparisons and rows of tables, and the cells that train them.

`arm_cells` trains variants at tuned settings with every seed. The learning rate is that of the variant's optimizer
without noise, so that arms which differ in their noise alone share their first epochs; a method with a radius of its
own has that tuned too. Two studies that name the same variant and batch size share its runs.

Example:
    >>> from scala_lab.study.profiles import EMBEDDED
    >>> len(arm_cells(EMBEDDED, [LAMB, SCALA], EMBEDDED.large_batch)) == 2 * len(EMBEDDED.tasks) * len(EMBEDDED.seeds)
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scala_lab.methods.recipes import find_recipe
from scala_lab.study.profiles import Profile
from scala_lab.study.tuning import TUNING_SPLIT
from scala_lab.sweep.cells import Cell


@dataclass(frozen=True)
class MethodVariant:
    """A named way to train: a recipe with some settings changed."""

    method: str  # its name in tables, and in the column `method` of a study's frame
    recipe: str  # as in `scala-lab train --method RECIPE`
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings in which it differs from the recipe
    radius: str = ""  # the setting that is tuned beside the rate, or several of one value: a key of `start_radii`

    def but(self, method: str, **overrides: Any) -> MethodVariant:
        """Return this variant under another name with some settings changed."""
        return replace(self, method=method, overrides={**self.overrides, **overrides})


TUNED, OTHER, EARLY = "tuned", "other", "early"
"""Values of `delay`: the one of the paper's two t_s that is better on tuning rows, the other one, the earlier one."""

BASELINE = MethodVariant("baseline", "plain")
SMALL_BATCH = BASELINE.but("small-batch baseline")
LAMB = MethodVariant("LAMB", "lamb")
SCALA = MethodVariant("ScaLA", "scala")
SCALA_EARLY = SCALA.but("ScaLA, early t_s", delay=EARLY)
SCALA_TUNED = SCALA.but("ScaLA, tuned t_s", delay=TUNED)
SCALA_OTHER = SCALA.but("ScaLA, other t_s", delay=OTHER)
EFFECTIVE = MethodVariant("ScaLA-effective", "scala-effective", {"radius_unit": "embedding"}, radius="omega rho")
FREELB = MethodVariant("FreeLB", "freelb", {"radius_unit": "embedding"}, radius="adv_scale")
SAM = MethodVariant("SAM", "sam", radius="sam_rho")
GAUSSIAN = MethodVariant("Gaussian noise", "gaussian")
TWO_DRAWS = MethodVariant("two draws, no noise", "two-draws")
RDROP = MethodVariant("R-Drop", "rdrop")
WITHOUT_DELAY = SCALA.but("without delay", delay=0.0)
ONE_DRAW = SCALA.but("noise, one draw", masks="shared")


def arm_cells(
    profile: Profile,
    variants: MethodVariant | Sequence[MethodVariant],
    batch_size: int,
    tasks: Sequence[str] = (),
    *,
    models: Sequence[str] = (),
    by_rule: bool = False,
    **labels: Any,
) -> list[Cell]:
    """Return the cells of variants at their tuned settings, with every seed; by default on all tasks, the first model.

    Labels: model, task, method, batch_size, rate, seed, `interior` (whether each tuned setting's best value lies inside
    of its grid), `selection_split` (the rows that chose it), and those given. `by_rule` takes the rate that is tuned at
    the small batch size and carries it over by the square-root rule.
    """
    cells = []
    for model in models or profile.models[:1]:
        for task in tasks or profile.tasks:
            for variant in [variants] if isinstance(variants, MethodVariant) else variants:
                settings, interior = tuned_settings(profile, variant, batch_size, task, model, by_rule=by_rule)
                for seed in profile.seeds:
                    spec = profile.spec(task, variant.recipe, batch_size, seed=seed, model=model, **settings)
                    named = {"model": model, "task": task, "method": variant.method, "batch_size": batch_size}
                    chosen = {"interior": interior, "selection_split": TUNING_SPLIT}
                    cells.append(Cell(spec, **named, rate=settings["rate"], seed=seed, **chosen, **labels))
    return cells


def tuned_settings(
    profile: Profile, variant: MethodVariant, batch_size: int, task: str, model: str = "", *, by_rule: bool = False
) -> tuple[dict[str, Any], bool]:
    """Return a variant's settings with `rate` and its radius as tuned, and whether their best values lie inside."""
    settings = dict(variant.overrides)
    if find_recipe(variant.recipe).step == "scala":
        early, late = profile.early_delay, profile.late_delay
        delay = settings.get("delay", EARLY if variant.recipe == "scala-effective" else late)
        if delay in (TUNED, OTHER):
            best = profile.tuned_delay(task, model).value
            delay = best if delay == TUNED else early + late - best
        settings["delay"] = early if delay == EARLY else delay
    base = profile.spec(task, variant.recipe, batch_size, model=model, **settings)
    tuned_at = profile.small_batch if by_rule else batch_size
    choice = profile.tuned_rate(task, base.resolved().optim.optimizer or "", tuned_at, model)
    rate = profile.rule_rate(choice.value, batch_size) if by_rule else choice.value
    interior = choice.interior
    if variant.radius:
        radius = profile.tuned_radius(variant.radius, task, variant.recipe, batch_size, model, **settings)
        settings |= dict.fromkeys(variant.radius.split(), radius.value)
        interior = interior and radius.interior
    return {**settings, "rate": rate}, interior
