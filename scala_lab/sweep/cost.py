"""What a list of cells will cost, before anything is run: runs, steps, forward passes and, where possible, time.

What a run will cost, said before it is started: steps, and forward passes with a backward counted as two.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scala_lab.config import DataSpec, RunSpec
from scala_lab.data.sources import published_rows
from scala_lab.errors import UserError
from scala_lab.methods.cost import passes_per_sample
from scala_lab.methods.recipes import find_recipe
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.store import RunStore, unique_items


@dataclass(frozen=True)
class Plan:
    """A run's work.

    Attributes:
        steps: Optimizer steps.
        forward_passes: Of one row each, in training.
        evaluations: Rows that are evaluated, over all epochs; a forward pass each.
    """

    steps: int
    forward_passes: float
    evaluations: int


def plan(spec: RunSpec) -> Plan:
    """The work of a run, from the published sizes of its task."""
    spec = spec.resolved()
    rows, eval_rows = count_rows(spec.data)
    batch_size = spec.batches.batch_size
    steps_per_epoch = math.ceil(rows / batch_size)
    steps = spec.optim.epochs * steps_per_epoch
    if spec.optim.max_steps is not None:
        steps = min(steps, spec.optim.max_steps)
    quiet = math.ceil(min(steps, _delay(spec) * steps_per_epoch))
    before, seen = (_samples(rows, batch_size, steps_per_epoch, count) for count in (quiet, steps))
    plain, noisy = passes_per_sample(spec)
    evaluations = math.ceil(steps / steps_per_epoch) * eval_rows + spec.data.heldout_samples
    return Plan(steps, plain * before + noisy * (seen - before), evaluations)


def count_rows(data: DataSpec) -> tuple[int, int]:
    """Train and evaluation rows of a run, by its spec and the published sizes; a file of the user's own is read."""
    there = published_rows(data.task)
    if there is None:
        from scala_lab.data.sources import load_task

        loaded = load_task(data)
        there = len(loaded.train), sum(len(rows) for rows in loaded.evals.values())
    splits = 2 if data.task == "mnli" else 1
    train = there[0] - data.heldout_samples if data.train_samples is None else data.train_samples
    return train, there[1] if data.eval_samples is None else data.eval_samples * splits


def _samples(rows: int, batch_size: int, steps_per_epoch: int, steps: int) -> int:
    """Rows seen in the first steps; the last batch of an epoch may be smaller."""
    epochs, rest = divmod(steps, steps_per_epoch)
    return epochs * rows + rest * batch_size


def _delay(spec: RunSpec) -> float:
    """Epochs before the noise starts; the costs of FreeLB and R-Drop are the same from the first step on."""
    if find_recipe(spec.recipe.method).step != "scala":
        return 0.0
    return math.inf if spec.recipe.lambda_ == 0 else spec.recipe.delay or 0.0


def expected_cost(what: RunSpec | Measurement) -> float:
    """A run's forward passes, evaluation included, to order runs by; 0 where nothing can be said beforehand."""
    if isinstance(what, Measurement):
        return 0.0
    try:
        work = plan(what)
    except UserError:  # its data cannot be read: the run itself will say so
        return 0.0
    return work.forward_passes + work.evaluations


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
    things = list(unique_items(cells).values())
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
    unknown = Counter(what.path for what in measurements if what.path not in known)
    for what in measurements:
        seconds = known.get(what.path, 0.0)
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
    from scala_lab.timing.speed import mean_tokens, measure_speed

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
