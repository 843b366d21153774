"""Rows of tables as grids of runs: the same method at the same place is the same runs in every study.

Main tables tune each row on the profile's whole grid with all seeds (`tuned_cells`); studies beside them take the
rates about its middle and the side seeds (`side_cells`). Both label cells with model, task, method, batch_size, rate
and seed.

Example:
    >>> from scala_lab.study.profiles import EMBEDDED
    >>> len(tuned_cells(EMBEDDED, SCALA, EMBEDDED.large_batch)) == 4 * len(EMBEDDED.rates("scala", 512)) * 3
    True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scala_lab.study.profiles import Profile
from scala_lab.sweep.cells import Cell


@dataclass(frozen=True)
class MethodVariant:
    """A method as a table names it.

    Attributes:
        method: Its name there.
        recipe: What it runs.
        overrides: Settings in which it differs from the recipe.
    """

    method: str
    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def but(self, method: str, **overrides: Any) -> MethodVariant:
        """This row under another name with some settings changed."""
        return replace(self, method=method, overrides={**self.overrides, **overrides})

    def named(self, method: str) -> MethodVariant:
        """The same runs under another name."""
        return replace(self, method=method)


BASELINE = MethodVariant("baseline", "plain")
LAMB = MethodVariant("LAMB", "lamb")
SCALA = MethodVariant("ScaLA", "scala")
EFFECTIVE = MethodVariant("ScaLA-effective", "scala-effective")
FREELB = MethodVariant("FreeLB", "freelb")
GAUSSIAN = MethodVariant("Gaussian noise", "gaussian")
TWO_DRAWS = MethodVariant("two draws, no noise", "two-draws")
RDROP = MethodVariant("R-Drop", "rdrop")
WITHOUT_DELAY = SCALA.but("without delay", delay=0.0)
WITHOUT_GROUPS = SCALA.but("without group-wise rates", optimizer="adamw")
WITHOUT_NOISE = LAMB.named("without PGA-1")
"""ScaLA with lambda 0 takes LAMB's plain step to the bit, so LAMB's runs are its runs."""
SCALA_GT = SCALA.but("ScaLA (GT)", target="GT")
ONE_DRAW = SCALA.but("noise, one draw", masks="shared")


def tuned_cells(
    profile: Profile,
    row: MethodVariant,
    batch_size: int,
    tasks: Iterable[str] | None = None,
    *,
    models: Iterable[str] | None = None,
    **labels: Any,
) -> list[Cell]:
    """The row on the profile's whole grid of rates with all seeds.

    Args:
        profile: Where rates, seeds and settings come from.
        row: The method.
        batch_size: Samples per step.
        tasks: Default all four.
        models: Default the first.
        labels: Further columns of the cells.
    """
    rates = profile.rates(row.recipe, batch_size, row.overrides.get("optimizer"))
    return grid_cells(profile, row, batch_size, rates, profile.seeds, tasks, models=models, **labels)


def side_cells(
    profile: Profile,
    row: MethodVariant,
    batch_size: int,
    tasks: Iterable[str] | None = None,
    *,
    seeds: Iterable[int] | None = None,
    **labels: Any,
) -> list[Cell]:
    """The row at the rates about the middle of the grid, with the side seeds unless others are given."""
    rates = profile.side_rates(row.recipe, batch_size, row.overrides.get("optimizer"))
    chosen = profile.side_seeds if seeds is None else seeds
    return grid_cells(profile, row, batch_size, rates, chosen, tasks, **labels)


def grid_cells(
    profile: Profile,
    row: MethodVariant,
    batch_size: int,
    rates: Iterable[float],
    seeds: Iterable[int],
    tasks: Iterable[str] | None = None,
    *,
    models: Iterable[str] | None = None,
    **labels: Any,
) -> list[Cell]:
    """The row at every rate, with every seed, on every task and model."""
    return [
        Cell(
            profile.spec(task, row.recipe, batch_size, rate, seed=seed, model=model, **row.overrides),
            **{"model": model, "task": task, "method": row.method, "batch_size": batch_size},
            **{"rate": rate, "seed": seed, **labels},
        )
        for model in tuple(models or profile.models[:1])
        for task in tuple(tasks or profile.tasks)
        for rate in tuple(rates)
        for seed in tuple(seeds)
    ]
