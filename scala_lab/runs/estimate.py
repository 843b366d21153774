"""What a list of cells will cost, before anything is run: runs, steps, forward passes and, where possible, time."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scala_lab.errors import UserError
from scala_lab.runs.cell import Cell
from scala_lab.runs.measurement import Measurement
from scala_lab.runs.plan import Plan, plan
from scala_lab.runs.store import RunStore, everything
from scala_lab.spec import RunSpec


@dataclass(frozen=True)
class SweepEstimate:
    """The work of a sweep.

    Attributes:
        runs: Different runs, those that measurements need included.
        measurements: Different measurements.
        steps: Optimizer steps of all runs.
        forward_passes: Of one row each, a backward counted as two, in the training of all runs.
        seconds: On this machine, or None where it cannot be estimated.
        notes: Sentences: what the time leaves out, or why there is none.
    """

    runs: int
    measurements: int
    steps: int
    forward_passes: float
    seconds: float | None
    notes: tuple[str, ...] = ()


def estimate(
    cells: Iterable[Cell], *, store: RunStore | None = None, processes: int | None = None, timed: bool = True
) -> SweepEstimate:
    """The work of all cells and of the runs they need, each counted once, whether it is done already or not.

    Args:
        cells: What a sweep would be given; `RunStore.by_status` tells what of it is missing.
        store: Where measurements of the same kind may have been taken, to know their time.
        processes: Jobs at once, as `LocalPool` takes it.
        timed: Whether to estimate the time, which takes a second of training for each kind of run.
    """
    things = list(everything(cells).values())
    specs = [what.resolved() for what in things if isinstance(what, RunSpec)]
    measurements = [what for what in things if isinstance(what, Measurement)]
    plans = [plan(spec) for spec in specs]
    seconds, notes = _seconds(specs, plans, measurements, store, processes) if timed else (None, [])
    return SweepEstimate(
        runs=len(specs),
        measurements=len(measurements),
        steps=sum(work.steps for work in plans),
        forward_passes=sum(work.forward_passes for work in plans),
        seconds=seconds,
        notes=tuple(notes),
    )


def _seconds(
    specs: Sequence[RunSpec],
    plans: Sequence[Plan],
    measurements: Sequence[Measurement],
    store: RunStore | None,
    processes: int | None,
) -> tuple[float | None, list[str]]:
    """Seconds until all is done by a pool on this machine, and what there is to say about them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    together = alone = 0.0
    try:
        for spec, work in zip(specs, plans, strict=True):
            used = min(cores, spec.machine.workers * (spec.machine.threads or 1))
            together += run_seconds(spec, work) * (1 / processes if processes else used / cores)
    except UserError as error:
        return None, [f"the time is not estimated: {error}"]
    known = _mean_seconds(store) if store is not None else {}
    unknown = Counter(what.function for what in measurements if what.function not in known)
    for what in measurements:
        seconds = known.get(what.function, 0.0)
        if what.alone:
            alone += seconds
        else:
            together += seconds / (processes or cores)
    notes = [
        f"the time leaves out {count} measurements by {function}, of which none was taken here before"
        for function, count in sorted(unknown.items())
    ]
    return together + alone, notes


def run_seconds(spec: RunSpec, work: Plan) -> float:
    """Seconds of one run with this machine to itself.

    Raises:
        UserError: The model or the data is not at hand, or the run is for a device that this machine lacks.
    """
    from scala_lab.runs.calibration import mean_tokens, measure_speed

    speed = measure_speed(spec)
    passes = (work.forward_passes + work.evaluations) / spec.machine.workers
    return speed.start + passes * mean_tokens(spec) * speed.per_token + work.steps * speed.per_update


def _mean_seconds(store: RunStore) -> dict[str, float]:
    """What measurements in the store took, by function."""
    found: dict[str, list[float]] = defaultdict(list)
    for file in store.root.glob("measurements/*.json"):
        record = json.loads(file.read_bytes())
        if record["status"] == "finished":
            found[record["function"]].append(record["seconds"])
    return {function: sum(seconds) / len(seconds) for function, seconds in found.items()}
