"""`train(spec)`: check everything, train here or in several workers, leave a complete run folder."""

import shutil
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch

import scala_lab.machine as machine
from scala_lab.config import RunSpec, check_noise_starts, plain_epochs, planned_steps, steps_before
from scala_lab.data.tasks import chance
from scala_lab.errors import UserError
from scala_lab.models.loading import locate_model
from scala_lab.optim.lamb import Lamb
from scala_lab.training import distributed, run_dir
from scala_lab.training.precision import matrix_products
from scala_lab.training.preparation import Prepared, load_model, prepare
from scala_lab.training.progress import RunBar
from scala_lab.training.run_dir import RunResult
from scala_lab.training.trackers import check_trackers, is_installed
from scala_lab.training.trainer import Training


def train(
    spec: RunSpec,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    progress: bool = False,
    save_every: float = 60.0,
    tensorboard: bool = False,
    log_to: Sequence[str] = (),
    keep_states: Sequence[float] = (),
    trunk: Path | str | None = None,
    launcher: distributed.WorkerLauncher | None = None,
) -> RunResult:
    """Train a run and return its record.

    A run that already ended in `out` is not trained again. Nothing is written before the spec, the data, the model
    and the folder have been checked. A spec with several workers is trained by processes that this one starts, except
    in a process that torchrun started, which is one of the workers itself.

    Args:
        spec: What to run.
        out: The run's folder; default `runs/<name of the spec>`.
        resume: Go on from the state of an interrupted run in `out`.
        progress: Show a progress bar and a line per epoch on stderr.
        save_every: Seconds between saved states.
        tensorboard: Write TensorBoard events, if tensorboard is installed.
        log_to: Trackers that get the metrics too (tensorboard, wandb, mlflow); their packages must be installed.
        keep_states: Epochs at which the state is kept in the run's folder, for runs that branch off there.
        trunk: Folder of a run with the same prefix, which differs only in the method's options: start from its newest
            kept state before the first step that is not plain. The result is that of the run from scratch, bit for bit.
        launcher: Starts the workers elsewhere, such as `scala_lab.timing.hosts.open_hosts`.

    Example:
        >>> result = train(RunSpec.of(task="mini-sst2", method="lamb"), out="runs/lamb")  # doctest: +SKIP
        >>> result.metrics["dev"]["accuracy"]  # doctest: +SKIP
    """
    spec = spec.resolved()
    locate_model(spec.encoder.model)  # before the run's id, which depends on whether the model is a folder
    folder = Path(out) if out is not None else Path("runs") / spec.name
    for epoch in keep_states:
        if not 0 < epoch <= plain_epochs(spec):
            where = f"after the start and up to epoch {plain_epochs(spec):g}, where the plain steps of this run end"
            raise UserError(f"--keep-states must be {where}, not {epoch:g}")
    check_trackers(log_to)
    events = ["tensorboard"] if tensorboard and is_installed("tensorboard") else []
    trackers = tuple(dict.fromkeys([*log_to, *events]))
    options = RunOptions(resume, progress, save_every, trackers, tuple(keep_states), Path(trunk) if trunk else None)
    if spec.machine.workers > 1 and not machine.started_by_launcher():
        return _train_in_workers(spec, folder, options, launcher)
    return train_worker(spec, folder, options)


@dataclass(frozen=True)
class RunOptions:
    """Arguments of `train` that do not change the result."""

    resume: bool = False
    progress: bool = False
    save_every: float = 60.0
    log_to: Sequence[str] = ()
    keep_states: Sequence[float] = ()
    trunk: Path | None = None


def _train_in_workers(
    spec: RunSpec, folder: Path, options: RunOptions, launcher: distributed.WorkerLauncher | None
) -> RunResult:
    """Start workers that each run `train_worker`, and return the run that they left; if one failed, record why."""
    prepared, present = _check_run(spec, folder, options)
    if present is not None and present.ended:
        return present
    distributed.check_devices(spec.machine)
    load_model(spec, prepared)  # finds an error in it before any worker is started
    first_record, written_before = _first_record(spec, prepared), run_dir.written_at(folder)
    result, fault = distributed.try_workers(partial(train_worker, spec, folder, options), spec.machine, launcher)
    if fault is None:
        return result
    present = run_dir.read_run(folder)
    if present is not None and present.ended:
        return present
    begun = run_dir.written_at(folder) != written_before
    if begun or fault.user_error is None:  # wrong input that was found at once leaves no run
        run_dir.record_failure(folder, fault.sentence, first_record)
    distributed.raise_failure(fault, folder)


def train_worker(spec: RunSpec, folder: Path, options: RunOptions) -> RunResult:
    """Train a resolved spec in this process, as its only worker or as one of those that a launcher started."""
    prepared, present = _check_run(spec, folder, options)
    if present is not None and present.ended:
        return present
    written_before = run_dir.written_at(folder)
    world = distributed.join_world(spec.machine)
    try:
        with torch.random.fork_rng(devices=[]), matrix_products(spec.machine.precision):
            training = Training(spec, prepared, world)
            with run_dir.locked(folder) if world.leads else nullcontext():
                return _run(training, folder, options)
    except Exception as error:
        fault = world.fail(error)
        begun = run_dir.written_at(folder) != written_before  # an error before that leaves no run
        if world.leads and not machine.orphaned() and (begun or (world.size > 1 and fault.user_error is None)):
            run_dir.record_failure(folder, fault.sentence, _first_record(spec, prepared))
        raise
    finally:
        world.leave()


def _check_run(spec: RunSpec, folder: Path, options: RunOptions) -> tuple[Prepared, RunResult | None]:
    """Check folder, data, spec and trunk; return the data, and the same run if the folder holds it already."""
    present = run_dir.check_folder(folder, spec, options.resume)
    prepared = prepare(spec)
    if present is not None:
        run_dir.check_inputs(present, prepared.fingerprints)
    if present is None or not present.ended:
        check_noise_starts(spec, len(prepared.train))
        if options.trunk is not None and run_dir.latest_state(folder / "state") is None:
            run_dir.check_trunk(options.trunk, spec, prepared.fingerprints)
    return prepared, present


def _run(training: Training, folder: Path, options: RunOptions) -> RunResult:
    """Train to the end; on the first worker also write the checkpoint and the record."""
    spec, prepared, world = training.spec, training.data, training.world
    state = run_dir.latest_state(folder / "state")
    trunk = options.trunk if state is None else None
    training.restore(state if trunk is None else run_dir.kept_state(trunk, spec))
    writer = run_dir.RunWriter(folder, _first_record(spec, prepared)) if world.leads else None
    if writer is not None:
        writer.update(
            learning_rate=training.rate,
            pga=training.pga,
            embedding_norm=training.embedding_norm,
            admission=training.admission.record(),
            steps_done=training.progress.steps_done,
            trunk=training.progress.trunk,
            parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        )
        if trunk is not None:
            shutil.copyfile(trunk / "metrics.jsonl", folder / "metrics.jsonl")  # which `start_log` cuts at the state
        writer.start_log(training.progress.steps_done, options.log_to)
    shown = options.progress and world.leads
    if shown:
        machine.warn_of_crowded_cores(spec.machine.device, spec.machine.workers, spec.machine.threads or 1)
    bar = RunBar(f"{spec.recipe.method} {spec.data.task}", training.steps, training.progress.steps_done, shown)
    with nullcontext() if writer is None else closing(writer):
        with bar:
            keep = {steps_before(epoch, spec, len(prepared.train)) for epoch in options.keep_states}
            finite = training.run(writer, bar, options.save_every, keep)
        status = "finished" if finite else "diverged"
        if writer is None:
            return RunResult(folder, {"status": status, "metrics": {}})
        if finite:
            run_dir.save_checkpoint(folder / "checkpoint", training.model, prepared.tokenizer)
            run_dir.save_predictions(folder / run_dir.PREDICTIONS, training.predictions)
        writer.update(status=status, **_final_record(training))
    shutil.rmtree(folder / "state", ignore_errors=True)
    return RunResult(folder, writer.record)


def _first_record(spec: RunSpec, prepared: Prepared) -> dict[str, Any]:
    return {
        "id": spec.run_id,
        "name": spec.name,
        "status": "running",
        "spec": spec.to_dict(),
        "fingerprints": prepared.fingerprints,
        "outputs": prepared.task.outputs,
        "steps": planned_steps(spec, len(prepared.train)),
        "steps_done": 0,
        "chance": chance(prepared.task, prepared.train.labels),
        "samples": {name: len(split) for name, split in prepared.splits.items()},
        "skipped_rows": prepared.skipped_rows,
        "metrics": {},
        "environment": machine.describe_environment(),
        "started": _utc_now(),
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
        "losses": training.losses,
        "best": progress.best,
        "noise_start": progress.noise_start,
        "counts": counts,
        "timing": {
            "train_seconds": progress.train_seconds,
            "evaluation_seconds": progress.evaluation_seconds,
            "samples_per_second": progress.samples / max(progress.train_seconds, 1e-9),
            "tokens_per_second": progress.tokens / max(progress.train_seconds, 1e-9),
            "phases": training.clock.totals(),
        },
        "peak_memory_bytes": machine.peak_memory_bytes(),
        "ended": _utc_now(),
    }


def _utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
