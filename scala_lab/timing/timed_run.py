"""Short runs with some number of workers, here or over hosts, timed step by step through the ordinary trainer.

Communication is measured, not inferred: each step is run with the all-reduce and again without it, on the same rows.
The trainer overlaps the all-reduce with nothing, so its phases sum to the step, and what a step takes longer than
without communication is what communication exposes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec
from scala_lab.timing.model import Load

if TYPE_CHECKING:
    from scala_lab.training.distributed import WorkerLauncher


@dataclass(frozen=True)
class TimedRun:
    """What a short run took; lists have one value per step after the warm-up.

    Attributes:
        step_seconds: With communication.
        without_seconds: The same rows without communication, on the slowest worker.
        phases: Seconds by phase on the first worker, with communication. Its all-reduce is sending and waiting for
            the slowest worker.
        exchange_seconds: The all-reduce on the worker that came to it last: sending alone.
        samples: Over all workers.
        tokens: Over all workers, padding not counted.
        flops: Of the model over all workers; see `ForwardFlops`.
        loads: What the first worker, whose rows are the longest, computes.
        matmul_rate: What all workers together do per second in products of large matrices.
        gradient_bytes: What a step's one message holds.
        steps_per_epoch: Steps in one pass over the training rows.
    """

    step_seconds: list[float]
    without_seconds: list[float]
    phases: dict[str, list[float]]
    exchange_seconds: list[float]
    samples: list[float]
    tokens: list[float]
    flops: list[float]
    loads: list[Load]
    matmul_rate: float
    gradient_bytes: int
    steps_per_epoch: int

    @property
    def exposed_seconds(self) -> list[float]:
        """What communication adds to each step."""
        return [whole - alone for whole, alone in zip(self.step_seconds, self.without_seconds, strict=True)]


def timed_runs(
    specs: Mapping[str, RunSpec], workers: int, steps: int, warmup: int, launcher: WorkerLauncher | None = None
) -> dict[str, TimedRun]:
    """Time the steps of specs in the same processes, those of one task in turns; no run folder is written.

    Args:
        specs: What is timed, by name; they share a machine part but for the number of workers.
        workers: Processes.
        steps: Steps that are kept.
        warmup: Steps before them that are not.
        launcher: Starts the workers; default on this host.
    """
    from scala_lab.training.distributed import run_workers

    short = {name: spec.override(workers=workers, max_steps=warmup + steps).resolved() for name, spec in specs.items()}
    machine = next(iter(short.values())).machine
    with tempfile.TemporaryDirectory(prefix="scala-lab-timing-") as folder:
        file = Path(folder) / "found.json"
        job = {"specs": {name: spec.to_dict() for name, spec in short.items()}, "steps": steps, "warmup": warmup}
        run_workers("scala_lab.timing.timed_worker", {**job, "found": str(file)}, machine, launcher=launcher)
        found = json.loads(file.read_text())
    return {name: _timed_run(run, found["matmul_rate"]) for name, run in found["runs"].items()}


def _timed_run(run: dict[str, Any], matmul_rate: float) -> TimedRun:
    together, sizes = run["together"], run["sizes"]
    return TimedRun(
        step_seconds=[step["step"] for step in together],
        without_seconds=run["apart"],
        phases={name: [step[name] for step in together] for name in together[0] if name != "step"},
        exchange_seconds=run["exchange"],
        **{name: [step[name] for step in sizes] for name in ("samples", "tokens", "flops")},
        loads=[Load(**step["load"]) for step in sizes],
        matmul_rate=matmul_rate,
        gradient_bytes=run["gradient_bytes"],
        steps_per_epoch=run["steps_per_epoch"],
    )
