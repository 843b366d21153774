"""What a run will cost, said before it is started: steps, and forward passes with a backward counted as two."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scala_lab.errors import UserError
from scala_lab.methods.recipes import find_recipe
from scala_lab.runs.budget import passes_per_sample
from scala_lab.runs.measurement import Measurement
from scala_lab.spec import DataSpec, RunSpec
from scala_lab.tasks.sizes import published_rows


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
        from scala_lab.tasks.sources import load_task

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
