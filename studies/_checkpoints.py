"""The trained models whose curvature is looked at: each method at the middle rate of its grid, on one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.methods.cost import passes_per_sample
from scala_lab.study import Cell
from scala_lab.study.profiles import Profile
from scala_lab.study.variants import BASELINE, EFFECTIVE, LAMB, SCALA, MethodVariant
from scala_lab.sweep.cells import Measurement

SMALL, LARGE = BASELINE.named("small batch"), BASELINE.named("large batch")
ALL = (SMALL, LARGE, LAMB, SCALA, EFFECTIVE)
SIDE_BY_SIDE = (SMALL, LARGE, SCALA)
"""The three of the paper's figure."""

RATE_NOTE = "Each method at the middle rate of its grid: a declaration cannot know which rate will turn out best."


def middle_rate(profile: Profile, row: MethodVariant, batch_size: int) -> float:
    """The middle of the row's grid."""
    grid = profile.rates(row.recipe, batch_size, row.overrides.get("optimizer"))
    return grid[len(grid) // 2]


def trained(profile: Profile, row: MethodVariant, seed: int, task: str | None = None) -> tuple[RunSpec, dict[str, Any]]:
    """The run behind a row, and its labels."""
    batch_size = profile.small_batch if row is SMALL else profile.large_batch
    rate = middle_rate(profile, row, batch_size)
    task = task or profile.pair[0]
    spec = profile.spec(task, row.recipe, batch_size, rate, seed=seed, **row.overrides)
    labels = {"task": task, "method": row.method, "batch_size": batch_size, "rate": rate, "seed": seed}
    return spec, labels | {"passes": forward_passes(spec)}


def forward_passes(spec: RunSpec) -> float:
    """What a run costs in forward passes over its rows, a backward counted as two."""
    plain, noisy = passes_per_sample(spec)
    epochs, delay = spec.optim.epochs, spec.resolved().recipe.delay or 0.0
    quiet = min(delay, epochs)
    return plain * quiet + noisy * (epochs - quiet)


def measured_cells(
    profile: Profile,
    function: Callable[..., dict[str, Any]],
    settings: Callable[[int], dict[str, Any]],
    rows: Sequence[MethodVariant],
    seeds: Iterable[int],
) -> list[Cell]:
    """One measurement of each checkpoint.

    Args:
        profile: Where the checkpoints come from.
        function: What is measured.
        settings: Its keywords, by the run's seed.
        rows: Which methods.
        seeds: Which of their runs.
    """
    cells = []
    for row in rows:
        for seed in seeds:
            spec, labels = trained(profile, row, seed)
            measurement = Measurement(function, (spec,), settings(seed))
            cells.append(Cell(measurement, **labels))
    return cells
