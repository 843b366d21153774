"""Measure how fast this machine trains a model, from a second of training on a few rows; cached for the next time."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.config import DataSpec, RunSpec
from scala_lab.data.tokens import cache_folder
from scala_lab.files import write_json
from scala_lab.methods.cost import PLAIN

if TYPE_CHECKING:
    from scala_lab.training.preparation import Prepared
    from scala_lab.training.trainer import Training


SAMPLE_ROWS = 1024
"""Rows that stand for the task."""
WARM_UP_STEPS, TIMED_SECONDS = 2, 1.0


@dataclass(frozen=True)
class Speed:
    """Seconds of a run before its first step, per token of a forward pass (a backward is two), and per update."""

    start: float
    per_token: float
    per_update: float


def measure_speed(spec: RunSpec) -> Speed:
    """Measure the speed of one worker of a run on this machine; once for all runs that are alike.

    Raises:
        UserError: The model or the data is not at hand, or the run is for a device that this machine lacks.
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


def mean_tokens(spec: RunSpec) -> float:
    """Mean number of tokens of the rows in the sample."""
    return float(_sample_of(spec).train.lengths.mean())


def _sample_of(spec: RunSpec) -> Prepared:
    """Sample rows of the run's task; which of them the run takes makes no difference here."""
    data = replace(spec.data, train_samples=None, eval_samples=None, heldout_samples=0, data_seed=0)
    return _sample(data, spec.encoder.model)


@functools.lru_cache(maxsize=32)
def _sample(data: DataSpec, model: str) -> Prepared:
    from scala_lab.data.sources import load_task
    from scala_lab.data.tokens import tokenise
    from scala_lab.models.loading import load_tokenizer, quiet_transformers
    from scala_lab.training.preparation import Prepared

    quiet_transformers()
    tokenizer, loaded = load_tokenizer(model), load_task(data)
    sample = loaded.train.take(np.random.default_rng(0).permutation(len(loaded.train))[:SAMPLE_ROWS])
    return Prepared(loaded.task, tokenizer, tokenise(sample, tokenizer, data.max_length), {}, None, {}, {})


def _measure(spec: RunSpec) -> Speed:
    """Train with the task loss for a moment; the cost of other methods follows from their passes."""
    import torch

    from scala_lab.training.distributed import join_world
    from scala_lab.training.trainer import Training

    rows = _sample_of(spec)
    batch_size = min(spec.batches.batch_size, 2 * spec.batches.micro_batch, len(rows.train))
    plain = replace(spec, recipe=RunSpec.of(method="plain").recipe)
    plain = plain.override(optimizer=spec.optim.optimizer, max_steps=None, batch_size=batch_size).resolved()
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            world = join_world(plain.machine)
            began = time.perf_counter()
            training = Training(plain, rows, world)
            start = time.perf_counter() - began
            return Speed(start, *_time_steps(training))
    finally:
        torch.set_num_threads(threads)


def _time_steps(training: Training) -> tuple[float, float]:
    """Seconds per token and pass, and per update."""
    from scala_lab.timing.harness import time_call

    training.model.train()
    passes = updates = 0.0
    tokens = 0
    for count in itertools.count():
        step = count % training.steps
        computing, _ = time_call(functools.partial(training.accumulate, step), training.world)
        updating, _ = time_call(functools.partial(training.update, step), training.world)
        if count >= WARM_UP_STEPS:
            passes += computing
            updates += updating
            tokens += int(training.plan.lengths[training.plan.global_batch(step)].sum())
            if passes + updates > TIMED_SECONDS:
                return passes / (tokens * PLAIN), updates / (count + 1 - WARM_UP_STEPS)
    raise AssertionError("the loop above ends by returning")


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
