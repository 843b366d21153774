"""A short run with some number of workers, timed step by step through the ordinary trainer."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scala_lab.spec import RunSpec


@dataclass(frozen=True)
class TimedRun:
    """What a short run took.

    Attributes:
        step_seconds: Of each step after the warm-up, on the first worker.
        all_reduce_seconds: Mean over all steps of what the first worker spent in the all-reduce: sending, and waiting
            for the slowest worker. The trainer does not overlap it with anything, so a step without communication
            takes that much less.
        steps_per_epoch: Steps in one pass over the training rows.
    """

    step_seconds: list[float]
    all_reduce_seconds: float
    steps_per_epoch: int


def timed_run(spec: RunSpec, workers: int, steps: int, warmup: int) -> TimedRun:
    """Train for a few steps in a folder that is thrown away.

    Args:
        spec: What is timed.
        workers: Processes.
        steps: Steps that are kept; fewer where the whole run has fewer.
        warmup: Steps before them that are not.
    """
    from scala_lab.training import train

    short = spec.override(workers=workers, max_steps=warmup + steps)
    with tempfile.TemporaryDirectory(prefix="scala-lab-timing-") as folder:
        run = train(short, Path(folder) / "run")
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    rows = run.record["samples"]["train"]
    batch = min(short.batches.batch_size, rows)
    kept = [batch / line["samples_per_second"] for line in lines[warmup:]]
    phases = run.record["timing"]["phases"]
    return TimedRun(kept, phases.get("all-reduce", 0.0) / len(lines), -(-rows // short.batches.batch_size))
