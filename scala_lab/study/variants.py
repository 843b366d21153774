"""Method variants, the rows of the tables, and the cells that train them.

Main tables tune each variant on the profile's whole grid of rates with all seeds (`tuned_cells`); other studies take
the rates about its middle and the side seeds (`side_cells`). Both label cells with model, task, method, batch_size,
rate and seed. Two studies that name the same variant, batch size and rate share its runs.

Example:
    >>> from scala_lab.study.profiles import EMBEDDED
    >>> len(tuned_cells(EMBEDDED, SCALA, EMBEDDED.large_batch)) == 4 * len(EMBEDDED.rates("scala", 512)) * 3
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from scala_lab.study.profiles import Profile
from scala_lab.sweep.cells import Cell


@dataclass(frozen=True)
class MethodVariant:
    """A named way to train, which is a row of a table: a recipe with some settings changed."""

    method: str  # its name in tables, and in the column `method` of a study's frame
    recipe: str  # as in `scala-lab train --method RECIPE`
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings in which it differs from the recipe

    def but(self, method: str, **overrides: Any) -> MethodVariant:
        """Return this variant under another name with some settings changed."""
        return replace(self, method=method, overrides={**self.overrides, **overrides})

    def named(self, method: str) -> MethodVariant:
        """Return this variant, and so its runs, under another name."""
        return replace(self, method=method)


Variants: TypeAlias = MethodVariant | Sequence[MethodVariant]

BASELINE = MethodVariant("baseline", "plain")
LAMB = MethodVariant("LAMB", "lamb")
SCALA = MethodVariant("ScaLA", "scala")
EFFECTIVE = MethodVariant("ScaLA-effective", "scala-effective")
FREELB = MethodVariant("FreeLB", "freelb")
GAUSSIAN = MethodVariant("Gaussian noise", "gaussian")
TWO_DRAWS = MethodVariant("two draws, no noise", "two-draws")
RDROP = MethodVariant("R-Drop", "rdrop")
WITHOUT_DELAY = SCALA.but("without delay", delay=0.0)
ONE_DRAW = SCALA.but("noise, one draw", masks="shared")


def tuned_cells(
    profile: Profile, variants: Variants, batch_size: int, tasks: Sequence[str] = (), *, models: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells of one or several variants on the whole grids of their optimizers, with all seeds.

    Tasks are all four of the profile and models its first unless others are given.
    """
    cells = []
    for variant in [variants] if isinstance(variants, MethodVariant) else variants:
        rates = profile.rates(variant.recipe, batch_size, variant.overrides.get("optimizer"))
        cells += grid_cells(profile, variant, batch_size, rates, profile.seeds, tasks, models=models)
    return cells


def side_cells(
    profile: Profile,
    variants: Variants,
    batch_size: int,
    tasks: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (),
    **labels: Any,
) -> list[Cell]:
    """Return the cells of variants at the rates about the middle of their grids, by default with the side seeds."""
    cells = []
    for variant in [variants] if isinstance(variants, MethodVariant) else variants:
        rates = profile.side_rates(variant.recipe, batch_size, variant.overrides.get("optimizer"))
        cells += grid_cells(profile, variant, batch_size, rates, seeds or profile.side_seeds, tasks, **labels)
    return cells


def delay_cells(profile: Profile) -> list[Cell]:
    """Return the cells of ScaLA at every t_s of the profile, with the label `delay`."""
    cells = []
    for t_s in profile.delays:
        variant = SCALA.but(SCALA.method, delay=t_s)
        cells += side_cells(profile, variant, profile.large_batch, profile.pair, delay=t_s)
    return cells


def grid_cells(
    profile: Profile,
    variant: MethodVariant,
    batch_size: int,
    rates: Sequence[float],
    seeds: Sequence[int],
    tasks: Sequence[str] = (),
    *,
    models: Sequence[str] = (),
    **labels: Any,
) -> list[Cell]:
    """Return the cells of a variant at every rate, with every seed, on every task and model; `labels` are added."""
    return [
        Cell(
            profile.spec(task, variant.recipe, batch_size, rate, seed=seed, model=model, **variant.overrides),
            **{"model": model, "task": task, "method": variant.method, "batch_size": batch_size},
            **{"rate": rate, "seed": seed, **labels},
        )
        for model in models or profile.models[:1]
        for task in tasks or profile.tasks
        for rate in rates
        for seed in seeds
    ]
