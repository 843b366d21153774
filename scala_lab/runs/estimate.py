"""What a list of cells will cost, before anything is run: runs, steps, forward passes and, where possible, time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scala_lab.runs.measurement import Measurement
from scala_lab.runs.plan import plan
from scala_lab.runs.store import everything
from scala_lab.study.declaration import Cell


@dataclass(frozen=True)
class SweepEstimate:
    """The work of a sweep.

    Attributes:
        runs: Different runs, those that measurements need included.
        measurements: Different measurements.
        steps: Optimizer steps of all runs.
        forward_passes: Of one row each, a backward counted as two, over all runs.
        seconds: Of training and evaluation, or None where it cannot be estimated.
        notes: What the numbers leave out, and why there is no time if there is none.
    """

    runs: int
    measurements: int
    steps: int
    forward_passes: float
    seconds: float | None
    notes: tuple[str, ...] = ()


def estimate(cells: Iterable[Cell]) -> SweepEstimate:
    """The work of all cells and of the runs they need, each counted once."""
    things = everything(cells).values()
    specs = [what for what in things if not isinstance(what, Measurement)]
    plans = [plan(spec) for spec in specs]
    return SweepEstimate(
        runs=len(specs),
        measurements=len(things) - len(specs),
        steps=sum(work.steps for work in plans),
        forward_passes=sum(work.forward_passes for work in plans),
        seconds=None,
        notes=("time is not estimated",),
    )
