"""The trained models whose curvature is measured: each method at the middle rate of its grid, on one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.methods.cost import passes_per_sample
from scala_lab.study import Cell, Profile
from scala_lab.study.variants import BASELINE, EFFECTIVE, LAMB, SCALA, MethodVariant
from scala_lab.sweep.cells import Measurement

SMALL, LARGE = BASELINE.named("small batch"), BASELINE.named("large batch")
ALL = (SMALL, LARGE, LAMB, SCALA, EFFECTIVE)
SIDE_BY_SIDE = (SMALL, LARGE, SCALA)
"""The three of the paper's figure."""

RATE_NOTE = "Each method at the middle rate of its grid: a declaration cannot know which rate will turn out best."


def middle_rate(profile: Profile, variant: MethodVariant, batch_size: int) -> float:
    """Return the middle of the method's grid of rates."""
    grid = profile.rates(variant.recipe, batch_size, variant.overrides.get("optimizer"))
    return grid[len(grid) // 2]


def measured_cells(
    profile: Profile,
    function: Callable[..., dict[str, Any]],
    settings: Callable[[int], dict[str, Any]],
    variants: Sequence[MethodVariant],
    seeds: Iterable[int],
) -> list[Cell]:
    """Return one measurement by `function` per method and seed, with `settings` by the run's seed."""
    task, cells = profile.pair[0], []
    for variant in variants:
        batch_size = profile.small_batch if variant is SMALL else profile.large_batch
        rate = middle_rate(profile, variant, batch_size)
        for seed in seeds:
            spec = profile.spec(task, variant.recipe, batch_size, rate, seed=seed, **variant.overrides)
            labels = {"task": task, "method": variant.method, "batch_size": batch_size, "rate": rate, "seed": seed}
            measurement = Measurement(function, (spec,), settings(seed))
            cells.append(Cell(measurement, **labels, passes=_planned_passes(spec)))
    return cells


def _planned_passes(spec: RunSpec) -> float:
    """Return what a run costs in forward passes over its rows, a backward counted as two."""
    plain, noisy = passes_per_sample(spec)
    quiet = min(spec.resolved().recipe.delay or 0.0, spec.optim.epochs)
    return plain * quiet + noisy * (spec.optim.epochs - quiet)
