"""Timings that the studies ask for; nothing else should run on the machine meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from scala_lab.timing.model import Load

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult


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
    from scala_lab.timing.phases import phase_seconds

    found = phase_seconds({name: run.spec for name, run in zip(names, runs, strict=True)}, steps, warmup)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall) / threads
    lists = {f"{name}:{phase}": values for name, by_phase in found.items() for phase, values in by_phase.items()}
    return {**lists, "cpu_share": share}


def step_times(
    runs: Sequence[RunResult],
    *,
    names: Sequence[str],
    workers: int,
    steps: int,
    warmup: int,
    rate: str | None = None,
    threads: int = 1,
) -> dict[str, Any]:
    """Seconds of steps with some number of workers, on one host or on two; runs in turns.

    Args:
        runs: Their specs are timed.
        names: What they are called.
        workers: Processes.
        steps: Steps that are kept.
        warmup: Steps before them that are not.
        rate: Of the link between two hosts on this machine; None for one host.
        threads: Cores that this keeps busy.

    Returns:
        By `name:what` lists over steps: `step`, `without` (communication) and `exchange` (sending, without waiting)
        in seconds, every phase, `samples`, `tokens`, `flops`, and the first worker's load as `load micro_batches` and
        its like; `name:steps_per_epoch`; `gradient_bytes` and `matmul_rate`. Where this machine cannot have two hosts,
        only `lack`: the reason.
    """
    from scala_lab.timing.hosts import open_hosts, unsupported_reason

    lack = None if rate is None else unsupported_reason()
    if lack is not None:
        return {"lack": lack}
    specs = {name: run.spec for name, run in zip(names, runs, strict=True)}
    with nullcontext() if rate is None else open_hosts(2, rate) as launcher:
        from scala_lab.timing.timed_run import timed_runs

        found = timed_runs(specs, workers, steps, warmup, launcher)
    result: dict[str, Any] = {}
    for name, timed in found.items():
        lists = {"step": timed.step_seconds, "without": timed.without_seconds, **timed.phases}
        lists["exchange"] = timed.exchange_seconds
        lists |= {"samples": timed.samples, "tokens": timed.tokens, "flops": timed.flops}
        lists |= {f"load {each.name}": [getattr(load, each.name) for load in timed.loads] for each in fields(Load)}
        result |= {f"{name}:{what}": values for what, values in lists.items()}
        result[f"{name}:steps_per_epoch"] = timed.steps_per_epoch
        result |= {"gradient_bytes": timed.gradient_bytes, "matmul_rate": timed.matmul_rate}
    return result


def calibration(runs: Sequence[RunResult], *, rates: Sequence[str], seconds: float, threads: int = 1) -> dict[str, Any]:
    """Constants of this machine's time; see `scala_lab.timing.calibration`.

    Args:
        runs: The run whose model, task and threads are meant.
        rates: Links between two hosts to measure as well, where this machine can have hosts.
        seconds: About how long each piece is measured for.
        threads: Cores that this keeps busy.

    Returns:
        The calibration's own values, links without limit having none (None) for bandwidth.
    """
    from scala_lab.timing.calibration import calibrate
    from scala_lab.timing.hosts import unsupported_reason

    return calibrate(runs[0].spec, rates if unsupported_reason() is None else (), seconds).to_dict()


def paper_projection(runs: Sequence[RunResult], *, model: str, workers: Sequence[int]) -> dict[str, Any]:
    """Fit the paper's reported times of one model on two tasks, predict all four, and project to more workers.

    Args:
        runs: None are needed.
        model: BERT-base or RoBERTa-large.
        workers: Numbers to project to.

    Returns:
        For each reported cell `row`, `task`, `reported` and `fitted` (seconds of a step) and `used` (1 where the fit
        saw it); the constants by name; and `projected_B` for B = 32 and 1024, seconds of an epoch of MNLI for each of
        `workers`, None where a worker would be without samples.
    """
    from scala_lab.timing.paper_times import FITTED_ON, fit_paper, predict

    fitted, cells = fit_paper(model)
    link = fitted.network.within
    found: dict[str, Any] = {
        "row": [cell.row for cell in cells],
        "task": [cell.task for cell in cells],
        "reported": [cell.reported for cell in cells],
        "fitted": [cell.fitted for cell in cells],
        "used": [int(cell.used) for cell in cells],
        "step": fitted.plain.per_step,
        "row of a batch": fitted.plain.per_row,
        "token": fitted.plain.per_token,
        "crowding": fitted.crowding,
        "exchange": link.all_reduce(fitted.gradient_bytes, 32),
        "LAMB": fitted.update["lamb"],
        "noise": fitted.noise.per_token / fitted.plain.per_token,
        "projected_workers": list(workers),
    }
    for batch_size in (32, 1024):
        steps = -(-MNLI_ROWS // batch_size)
        found[f"projected_{batch_size}"] = [
            steps * predict(fitted, "baseline", FITTED_ON[0], count, batch_size) if count <= batch_size else None
            for count in workers
        ]
    return found
