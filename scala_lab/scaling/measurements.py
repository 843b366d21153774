"""Timings that the studies ask for; nothing else should run on the machine meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.scaling.phases import phase_seconds
from scala_lab.scaling.step_model import SHARED, Observation, fit_step_model
from scala_lab.scaling.timed_run import timed_run

if TYPE_CHECKING:
    from scala_lab.training.run_folder import RunResult

MNLI_ROWS = 392_702


def phases(
    runs: Sequence[RunResult], *, names: Sequence[str], steps: int, warmup: int, threads: int = 1
) -> dict[str, Any]:
    """Seconds of each phase of a step, methods in turns.

    Args:
        runs: One run per method; only its spec is used.
        names: What the methods are called.
        steps: Steps that are kept.
        warmup: Steps before them that are not.
        threads: Set by whoever calls this.

    Returns:
        `method:phase` as a list over steps for every phase a method has, `method:step` for the whole, and
        `cpu_share`: the share of the time in which this process was computing, per thread; well below 1 when others
        kept the machine busy.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    found = phase_seconds({name: run.spec for name, run in zip(names, runs, strict=True)}, steps, warmup)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall) / threads
    lists = {f"{name}:{phase}": values for name, by_phase in found.items() for phase, values in by_phase.items()}
    return {**lists, "cpu_share": share}


def step_time(runs: Sequence[RunResult], *, workers: int, steps: int, warmup: int, threads: int = 1) -> dict[str, Any]:
    """Seconds of a step with some number of workers.

    Args:
        runs: The run whose spec is timed.
        workers: Processes.
        steps: Steps that are kept.
        warmup: Steps before them that are not.
        threads: Cores that this keeps busy.

    Returns:
        `step_seconds` (median), `slow_seconds` and `fast_seconds` (quartiles), `step_seconds_of` (each step),
        `all_reduce_seconds` (mean), `steps_per_epoch`.
    """
    timed = timed_run(runs[0].spec, workers, steps, warmup)
    fast, middle, slow = np.quantile(timed.step_seconds, [0.25, 0.5, 0.75]).tolist()
    return {
        "step_seconds": middle,
        "fast_seconds": fast,
        "slow_seconds": slow,
        "step_seconds_of": timed.step_seconds,
        "all_reduce_seconds": timed.all_reduce_seconds,
        "steps_per_epoch": timed.steps_per_epoch,
    }


def paper_projection(runs: Sequence[RunResult], *, model: str, workers: Sequence[int]) -> dict[str, Any]:
    """Fit the paper's reported times of one model, and project them to other numbers of workers.

    Args:
        runs: None are needed.
        model: BERT-base or RoBERTa-large.
        workers: Numbers to project to.

    Returns:
        For each reported cell `row`, `task`, `reported` and `fitted` (seconds of a step); the constants by name; and
        `projected_B` for B = 32 and 1024, seconds of an epoch of MNLI for each of `workers`, nan (as None) where a
        worker would be without samples.
    """
    from scala_lab.scaling.paper_times import PLACES, TASKS, step_seconds

    seen, rows = [], []
    for row, (count, batch_size) in PLACES.items():
        for task, seconds in zip(TASKS, step_seconds(model, row), strict=True):
            lamb, noise = row.startswith(("LAMB", "ScaLA")), row.startswith("ScaLA")
            seen.append(Observation(task, count, batch_size, lamb, noise, seconds))
            rows.append(row)
    fitted = fit_step_model(seen)
    found: dict[str, Any] = {
        "row": rows,
        "task": [place.task for place in seen],
        "reported": [place.seconds for place in seen],
        "fitted": [fitted.seconds(place) for place in seen],
        **{name: getattr(fitted, name) for name in SHARED},
        **{f"sample_{task}": seconds for task, seconds in fitted.sample.items()},
        "projected_workers": list(workers),
    }
    for batch_size in (32, 1024):
        steps = -(-MNLI_ROWS // batch_size)
        found[f"projected_{batch_size}"] = [
            steps * fitted.seconds(Observation(TASKS[0], count, batch_size)) if count <= batch_size else None
            for count in workers
        ]
    return found
