"""Estimate the cost of runs and sweeps: steps, forward passes (a backward counts as two), time in all and time left."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.config import DataSpec, RunSpec, plain_epochs, planned_steps, steps_before
from scala_lab.data.sources import all_rows, load_task, published_rows
from scala_lab.data.tokens import cache_folder, tokenise
from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.machine import usable_cores
from scala_lab.methods.cost import PLAIN, passes_per_sample
from scala_lab.sweep.cells import Cell, Measurement, WorkItem, find_trunks, runs_alone
from scala_lab.sweep.store import RunStore, unique_items

if TYPE_CHECKING:
    from scala_lab.training.preparation import Prepared

SAMPLE_ROWS = 1024  # rows that stand for a task where the speed of its runs is measured
WARM_UP_STEPS, TIMED_SECONDS = 2, 1.0


@dataclass(frozen=True)
class Plan:
    """The work of a run: its epochs, and those of them that its trunk trains.

    Without these: optimizer steps, forward passes of one row in training, and rows evaluated after all epochs.
    """

    epochs: float
    shared_epochs: float
    steps: int
    forward_passes: float
    evaluations: int


def plan(spec: RunSpec, branch: bool = False) -> Plan:
    """Compute the work of a run, or of a branch without its plain epochs, from the published sizes of its task."""
    spec = spec.resolved()
    rows, eval_rows = _count_rows(spec.data)
    batch_size = spec.batches.batch_size
    steps_per_epoch, steps = math.ceil(rows / batch_size), planned_steps(spec, rows)
    first = steps_before(plain_epochs(spec), spec, rows) if branch else 0

    def rows_seen(steps: int) -> int:
        epochs, rest = divmod(steps, steps_per_epoch)
        return epochs * rows + rest * batch_size  # the last batch of an epoch may be smaller

    # a rule that looks at the loss starts the noise at t_s at the latest
    noise_start = rows_seen(steps_before(plain_epochs(spec) or spec.recipe.delay or 0.0, spec, rows))
    plain, noisy = passes_per_sample(spec)
    forward_passes = plain * (noise_start - rows_seen(first)) + noisy * (rows_seen(steps) - noise_start)
    evaluations = math.ceil(steps / steps_per_epoch) - first // steps_per_epoch if first < steps else 0
    if spec.data.evaluate == "end":
        evaluations = min(evaluations, 1)
    rows_evaluated = evaluations * eval_rows + spec.data.heldout_samples + spec.data.tuning_samples
    return Plan(steps / steps_per_epoch, first / steps_per_epoch, steps - first, forward_passes, rows_evaluated)


def _count_rows(data: DataSpec) -> tuple[int, int]:
    """Count train and evaluation rows of a run; only a file of the user's own is read."""
    rows = published_rows(data.task)
    if rows is None:
        loaded = load_task(data)
        rows = len(loaded.train), sum(map(len, loaded.evals.values()))
    splits = 2 if data.task == "mnli" else 1
    kept_apart = data.heldout_samples + data.tuning_samples
    train = rows[0] - kept_apart if data.train_samples is None else data.train_samples
    return train, rows[1] if data.eval_samples is None else data.eval_samples * splits


def expected_cost(item: WorkItem, branch: bool = False) -> float:
    """Return a run's or a branch's forward passes, to order runs by; 0 where they are unknown beforehand."""
    if isinstance(item, Measurement):
        return 0.0
    try:
        work = plan(item, branch)
    except UserError:  # its data cannot be read: the run itself will say so
        return 0.0
    return work.forward_passes + work.evaluations


@dataclass(frozen=True)
class SweepEstimate(Plan):
    """The work of a sweep: the sums of the plans of all runs, how many runs and measurements it has, and the time.

    `seconds` is None where the time cannot be estimated; `notes` say why, or what the time leaves out.
    """

    runs: int
    measurements: int
    seconds: float | None
    notes: list[str]


def estimate(cells: Iterable[Cell], store: RunStore, processes: int | None = None) -> SweepEstimate:
    """Estimate the work of all cells and of the runs they need, each counted once, whether it is done or not.

    The time of runs is measured in a second of training for each kind of run, the time of measurements is that of
    others by the same function in the store. `processes` is that of `LocalPool`.
    """
    items = unique_items(cells)
    runs = {key: item.resolved() for key, item in items.items() if isinstance(item, RunSpec)}
    trunks = find_trunks(runs)
    plans = {spec: plan(spec, branch=key in trunks) for key, spec in runs.items()}
    measurements = [item for item in items.values() if isinstance(item, Measurement)]
    sums = {item.name: sum(getattr(work, item.name) for work in plans.values()) for item in fields(Plan)}
    seconds, notes = _seconds(plans, measurements, store, processes)
    return SweepEstimate(**sums, runs=len(plans), measurements=len(measurements), seconds=seconds, notes=notes)


def _seconds(
    plans: Mapping[RunSpec, Plan], measurements: Sequence[Measurement], store: RunStore, processes: int | None
) -> tuple[float | None, list[str]]:
    """Return the seconds that a pool on this machine takes, and notes about them."""
    cores, seconds = usable_cores(), 0.0
    try:
        for spec, work in plans.items():
            used = min(cores, spec.machine.workers * (spec.machine.threads or 1))
            seconds += run_seconds(spec, work) * (1 / processes if processes else used / cores)
    except UserError as error:
        return None, [f"the time is not estimated: {error}"]
    known = _mean_seconds(store)
    for measurement in measurements:
        seconds += known.get(measurement.path, 0.0) / (1 if measurement.alone else processes or cores)
    unknown = Counter(measurement.path for measurement in measurements if measurement.path not in known)
    return seconds, [
        f"the time leaves out {count} measurements by {function}, of which none was taken here before"
        for function, count in sorted(unknown.items())
    ]


def run_seconds(spec: RunSpec, work: Plan) -> float:
    """Estimate the seconds of a run that has this machine to itself; raises what `measure_speed` does."""
    speed = measure_speed(spec)
    passes = (work.forward_passes + work.evaluations) / spec.machine.workers
    mean_tokens = float(_sample(all_rows(spec.data), spec.encoder.model).train.lengths.mean())
    return speed.start + passes * mean_tokens * speed.per_token + work.steps * speed.per_update


def _mean_seconds(store: RunStore) -> dict[str, float]:
    """Return the mean seconds of the measurements in the store by function."""
    times: dict[str, list[float]] = defaultdict(list)
    for file in store.root.glob("measurements/*.json"):
        record = json.loads(file.read_bytes())
        if record["status"] == "finished":
            times[record["function"]].append(record["seconds"])
    return {function: sum(seconds) / len(seconds) for function, seconds in times.items()}


@dataclass(frozen=True)
class Speed:
    """Seconds of a run before its first step, per token of a forward pass (a backward is two), and per update."""

    start: float
    per_token: float
    per_update: float


def measure_speed(spec: RunSpec) -> Speed:
    """Measure the speed of one worker of a run on this machine; once for all runs that are alike.

    Raises a UserError if the model or the data is not available, or the run is for a device that this machine lacks.
    """
    spec = spec.resolved().override(workers=1)
    path = cache_folder() / "speed" / f"{_key(spec)}.json"
    try:
        return Speed(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        speed = _measure(spec)
    with contextlib.suppress(OSError):  # a cache only ever saves time
        write_json(path, asdict(speed))
    return speed


@functools.lru_cache(maxsize=32)
def _sample(data: DataSpec, model: str) -> Prepared:
    from scala_lab.models.loading import load_tokenizer, quiet_transformers
    from scala_lab.training.preparation import Prepared

    quiet_transformers()
    tokenizer, loaded = load_tokenizer(model), load_task(data)
    sample = loaded.train.take(np.random.default_rng(0).permutation(len(loaded.train))[:SAMPLE_ROWS])
    return Prepared(loaded.task, tokenizer, tokenise(sample, tokenizer, data.max_length), {}, {}, {}, {})


def _measure(spec: RunSpec) -> Speed:
    """Train with the task loss for a moment: the cost of other methods follows from their passes."""
    import torch

    from scala_lab.timing.harness import time_call
    from scala_lab.training.distributed import join_world
    from scala_lab.training.trainer import Training

    rows = _sample(all_rows(spec.data), spec.encoder.model)
    batch_size = min(spec.batches.batch_size, 2 * spec.batches.micro_batch, len(rows.train))
    plain = replace(spec, recipe=RunSpec.of(method="plain").recipe)
    plain = plain.override(optimizer=spec.optim.optimizer, max_steps=None, batch_size=batch_size).resolved()
    passes, updates, tokens, count = 0.0, 0.0, 0, -WARM_UP_STEPS
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            world = join_world(plain.machine)
            began = time.perf_counter()
            training = Training(plain, rows, world)
            start = time.perf_counter() - began
            training.model.train()
            while passes + updates <= TIMED_SECONDS:
                step = (count + WARM_UP_STEPS) % training.steps
                computing, _ = time_call(functools.partial(training.accumulate, step), world)
                updating, _ = time_call(functools.partial(training.update, step), world)
                if count >= 0:
                    passes += computing
                    updates += updating
                    tokens += int(training.plan.lengths[training.plan.global_batch(step)].sum())
                count += 1
    finally:
        torch.set_num_threads(threads)
    return Speed(start, passes / (tokens * PLAIN), updates / count)


def _key(spec: RunSpec) -> str:
    """Hash all that decides the speed."""
    import torch

    from scala_lab.models.loading import locate_model, model_fingerprint

    machine, batches = spec.machine, spec.batches
    values = [
        *(platform.node(), platform.machine(), os.cpu_count(), torch.__version__),
        *(model_fingerprint(locate_model(spec.encoder.model)), spec.encoder.dropout, spec.optim.optimizer),
        *(machine.threads, machine.device, machine.precision, min(batches.batch_size, 2 * batches.micro_batch)),
        batches.micro_batch,
    ]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


class Pace:
    """Estimates times from those of similar items: seconds per unit of cost of runs, mean seconds of measurements."""

    def __init__(self) -> None:
        self._totals: dict[object, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def learn(self, item: WorkItem, cost: float, seconds: float) -> None:
        """Add how long an item took."""
        for kind, weight in self._weights(item, cost):
            costs, total = self._totals[kind]
            self._totals[kind] = costs + weight, total + seconds

    def expect(self, item: WorkItem, cost: float) -> float | None:
        """Return the seconds that an item will take, or None if nothing similar has ended yet."""
        for kind, weight in self._weights(item, cost):
            costs, total = self._totals[kind]
            if costs:
                return total / costs * weight
        return None

    def seconds_left(self, left: Iterable[tuple[WorkItem, float]], at_once: float) -> float | None:
        """Return the seconds that items with these costs will take in all, or None if nothing similar has ended.

        Measurements that run alone add their whole time; items that nothing similar has ended of are left out.
        """
        times = [(item, seconds) for item, cost in left if (seconds := self.expect(item, cost)) is not None]
        alone = sum(seconds for item, seconds in times if runs_alone(item))
        together = sum(seconds for item, seconds in times if not runs_alone(item))
        return together / at_once + alone if times else None

    def _weights(self, item: WorkItem, cost: float) -> list[tuple[object, float]]:
        """Return the kinds that an item belongs to, the most similar one first, and what it weighs in each."""
        if isinstance(item, Measurement):
            return [(item.path, 1.0)]
        return [((item.encoder.model, item.batches.batch_size, item.optim.optimizer), cost), ("any run", cost)]


def describe_seconds(seconds: float) -> str:
    """Write a duration in the unit that people would use.

    >>> describe_seconds(45), describe_seconds(600), describe_seconds(100_000)
    ('45 s', '10 min', '27.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
