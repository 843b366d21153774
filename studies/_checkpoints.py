"""The trained models whose curvature is measured: each method at its tuned settings, on one task."""

from collections.abc import Callable, Sequence
from typing import Any

from scala_lab.study import Cell, Profile
from scala_lab.study.variants import BASELINE, SCALA_TUNED, SMALL_BATCH, MethodVariant, arm_cells
from scala_lab.sweep.cells import Measurement

SIDE_BY_SIDE = (SMALL_BATCH, BASELINE, SCALA_TUNED)  # the three of the paper's figure

RATE_NOTE = "Each method at settings tuned on rows of their own; ScaLA at the better of the paper's two t_s."


def run_cells(profile: Profile, variants: Sequence[MethodVariant], **labels: Any) -> list[Cell]:
    """Return the runs of methods with every seed on the task of the paper's figures."""
    return [
        cell
        for variant in variants
        for batch_size in [profile.small_batch if variant is SMALL_BATCH else profile.large_batch]
        for cell in arm_cells(profile, variant, batch_size, profile.pair[:1], **labels)
    ]


def measured_cells(
    runs: Sequence[Cell], function: Callable[..., dict[str, Any]], settings: Callable[[int], dict[str, Any]]
) -> list[Cell]:
    """Return one measurement by `function` per run, with `settings` by the run's seed."""
    return [
        Cell(Measurement(function, run.specs, settings(run.labels["seed"])), **{**run.labels, "kind": "measurement"})
        for run in runs
    ]


def first_seed_cells(profile: Profile, measure: Callable[..., dict[str, Any]], **settings: Any) -> list[Cell]:
    """Return what is measured of small batch, large batch and ScaLA with the first seed."""
    plan, first = profile.curvature, run_cells(profile.restricted(seeds=profile.seeds[:1]), SIDE_BY_SIDE)
    settings = {"samples": plan.samples, **settings, "threads": plan.threads}
    return measured_cells(first, measure, lambda seed: settings)
