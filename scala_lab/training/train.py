"""`train(spec)`: check everything, start workers if needed, run, leave a complete folder."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from scala_lab.config import RunSpec, check_noise_starts, planned_steps
from scala_lab.machine import describe_environment, peak_memory_bytes
from scala_lab.models.loading import locate_model
from scala_lab.optim.lamb import Lamb
from scala_lab.processes import orphaned
from scala_lab.training.distributed import (
    WorkerLauncher,
    check_devices,
    join_world,
    launch_workers,
    started_by_launcher,
    warn_of_crowded_cores,
)
from scala_lab.training.precision import matrix_products
from scala_lab.training.preparation import Prepared, load_model, prepare
from scala_lab.training.progress import ConsoleReporter, Silent
from scala_lab.training.run_dir import (
    RunResult,
    RunWriter,
    check_folder,
    check_inputs,
    drop_state,
    locked,
    record_failure,
    save_checkpoint,
    written_at,
)
from scala_lab.training.trainer import Training


def train(
    spec: RunSpec,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    progress: bool = False,
    save_every: float = 60.0,
    tensorboard: bool = False,
    launcher: WorkerLauncher | None = None,
) -> RunResult:
    """Train a run and return its record.

    A run that already ended in `out` is not trained again. Nothing is written before the spec, the data, the
    model and the folder have been checked.

    Args:
        spec: What to run.
        out: The run's folder; default `runs/<name of the spec>`.
        resume: Go on from the state of an interrupted run in `out`.
        progress: Show a progress bar and a line per epoch on stderr.
        save_every: Seconds between saved states.
        tensorboard: Write TensorBoard events as well, when tensorboard is installed.
        launcher: Starts several workers, such as `scala_lab.timing.hosts.open_hosts`; default this host.

    Example:
        >>> result = train(RunSpec.of(task="mini-sst2", method="lamb"), out="runs/lamb")  # doctest: +SKIP
        >>> result.metrics["dev"]["accuracy"]  # doctest: +SKIP
    """
    spec = spec.resolved()
    locate_model(spec.encoder.model)  # first, because a run's id asks whether the model is a folder
    folder = Path(out) if out is not None else Path("runs") / spec.name
    present = check_folder(folder, spec, resume)
    prepared = prepare(spec)
    if present is not None:
        check_inputs(present, prepared.fingerprints)
        if present.ended:
            return present
    check_noise_starts(spec, len(prepared.train))
    options = RunOptions(progress, save_every, tensorboard)
    if spec.machine.workers > 1 and not started_by_launcher():
        check_devices(spec)
        load_model(spec, prepared)  # each worker loads it again; here a fault in it is found before any is started
        first_record = _first_record(spec, prepared)
        return launch_workers(spec, folder, {**vars(options), "resume": resume}, first_record, launcher)
    before = written_at(folder)
    world = join_world(spec)
    try:
        with torch.random.fork_rng(devices=[]), matrix_products(spec.machine.precision):
            training = Training(spec, prepared, world)
            with locked(folder) if world.leads else nullcontext():
                return _train_here(training, folder, options)
    except Exception as error:
        fault = world.fail(error)
        begun = written_at(folder) != before  # what is found wrong before that leaves no run
        if world.leads and not orphaned() and (begun or (world.size > 1 and fault.user_error is None)):
            record_failure(folder, fault.sentence, _first_record(spec, prepared))
        raise
    finally:
        world.leave()


@dataclass(frozen=True)
class RunOptions:
    """What changes nothing in the result."""

    progress: bool
    save_every: float
    tensorboard: bool


def _train_here(training: Training, folder: Path, options: RunOptions) -> RunResult:
    """This worker's part: train, then on the first worker write the checkpoint and the record."""
    spec, prepared, world = training.spec, training.data, training.world
    training.restore(folder / "state")
    writer = RunWriter(folder, _first_record(spec, prepared)) if world.leads else None
    if writer is not None:
        writer.update(**_training_record(training))
        writer.start_log(training.progress.steps_done, options.tensorboard)
    if options.progress and world.leads:
        warn_of_crowded_cores(spec)
    try:
        with ConsoleReporter() if options.progress and world.leads else Silent() as reporter:
            reporter.begin(f"{spec.recipe.method} {spec.data.task}", training.steps, training.progress.steps_done)
            finite = training.run(writer, reporter, options.save_every)
    finally:
        if writer is not None:
            writer.close_log()
    if writer is None:
        return RunResult(folder, {"status": "finished" if finite else "diverged", "metrics": {}})
    if finite:
        save_checkpoint(folder / "checkpoint", training.model, prepared.tokenizer)
    writer.update(status="finished" if finite else "diverged", **_final_record(training))
    drop_state(folder / "state")
    return RunResult(folder, writer.record)


def _first_record(spec: RunSpec, prepared: Prepared) -> dict[str, Any]:
    """What is known of a run before it begins."""
    return {
        "id": spec.run_id,
        "name": spec.name,
        "status": "running",
        "spec": spec.to_dict(),
        "fingerprints": prepared.fingerprints,
        "outputs": prepared.task.outputs,
        "steps": planned_steps(spec, len(prepared.train)),
        "steps_done": 0,
        "samples": {
            "train": len(prepared.train),
            "heldout": len(prepared.heldout) if prepared.heldout else 0,
            **{name: len(split) for name, split in prepared.evals.items()},
        },
        "skipped_rows": prepared.skipped_rows,
        "metrics": {},
        "environment": describe_environment(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _training_record(training: Training) -> dict[str, Any]:
    """What is known once the model is there and the saved state is read."""
    return {
        "learning_rate": training.rate,
        "pga": training.pga,
        "admission": training.admission.record(),
        "steps_done": training.progress.steps_done,
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
    }


def _final_record(training: Training) -> dict[str, Any]:
    progress = training.progress
    counts = {"noised_samples": progress.noised, "skipped_noise": progress.skipped}
    if training.loss_scale is not None:
        counts["skipped_steps"] = progress.skipped_steps
    if isinstance(training.optimizer, Lamb):
        counts |= {f"weight_norms_{name}": count for name, count in training.optimizer.clip_counts().items()}
    return {
        **({} if training.why_diverged is None else {"error": training.why_diverged}),
        "steps_done": progress.steps_done,
        "metrics": progress.metrics,
        "best": progress.best,
        "noise_start": progress.noise_start,
        "counts": counts,
        "timing": {
            "train_seconds": progress.train_seconds,
            "evaluation_seconds": progress.evaluation_seconds,
            "samples_per_second": progress.samples / max(progress.train_seconds, 1e-9),
            "tokens_per_second": progress.tokens / max(progress.train_seconds, 1e-9),
            "phases": training.phases(),
        },
        "peak_memory_bytes": peak_memory_bytes(),
        "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
