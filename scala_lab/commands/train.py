"""`scala-lab train`: train one run and show its result."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from scala_lab.cli import parse_flags, result_console
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.machine import launched_workers
from scala_lab.training.trackers import TrackerName

if TYPE_CHECKING:
    from scala_lab.training.distributed import WorkerLauncher
    from scala_lab.training.run_dir import RunResult


@dataclass(frozen=True)
class Train:
    """Adapt a pretrained encoder to a task, with ScaLA or one of its baselines.

    Without options: ScaLA on the embedded task mini-sst2 with the embedded encoder, in about a minute.

        scala-lab train --method lamb --batch-size 512
        scala-lab train --task sst2 --data-dir glue --model bert-base-uncased --lr 1e-3 --workers 2
        torchrun --nnodes 2 --nproc-per-node 16 ... -m scala_lab train --task mnli --model roberta-large

    A run that is already finished in --out is shown, not trained again.
    """

    spec: RunSpec = field(default_factory=RunSpec)
    config: Path | None = None
    """TOML file with any of the settings below; flags override it."""
    out: Path | None = None
    """Folder of the run; default runs/<method>-<task>-<batch size>-<seed>-<id>."""
    resume: bool = False
    """Go on with an interrupted run in --out; its settings need not be given again."""
    save_every: float = 60.0
    """Seconds between states to resume from."""
    tensorboard: bool = True
    """Write TensorBoard events, if tensorboard is installed."""
    log_to: tuple[TrackerName, ...] = ()
    """Give settings and metrics to these trackers as well, under their own environment variables (WANDB_MODE=offline,
    MLFLOW_TRACKING_URI=sqlite:///mlflow.db, ...). A tracker that fails does not fail the run."""
    keep_states: tuple[float, ...] = ()
    """Epochs at which the state is kept in --out, for runs that start from it with --trunk."""
    trunk: Path | None = None
    """Folder of a run that differs only in the method's options: start from the state that it keeps of the plain steps
    (--keep-states) instead of training them again."""


def parse(args: list[str]) -> Train:
    """Read flags over the config file, or over the settings of the run to resume."""
    options = parse_flags(Train, args, prog="scala-lab train")
    from scala_lab.training.run_dir import read_run  # imports torch, for which --help should not wait

    present = read_run(options.out) if options.resume and options.out is not None else None
    stored = None if present is None else present.spec
    default = stored if options.config is None else RunSpec.from_toml(options.config)
    if default is not None:
        options = parse_flags(Train, args, prog="scala-lab train", default=Train(spec=default))
    if stored is not None and stored.recipe.method != options.spec.recipe.method:
        # said here, because the stored settings are full of options that another method does not have
        changed = f"method: {stored.recipe.method} -> {options.spec.recipe.method}"
        raise UserError(f"{options.out} holds another run ({changed}): choose another --out")
    workers = launched_workers(options.spec.machine.workers)
    return dataclasses.replace(options, spec=options.spec.override(workers=workers))


def run(options: Train, launcher: WorkerLauncher | None = None) -> int:
    """Train, here or where a launcher starts workers, and show the result; exit code 1 for a run that diverged."""
    from scala_lab.models.loading import locate_model
    from scala_lab.training.distributed import WorkerFailure
    from scala_lab.training.run_dir import read_run
    from scala_lab.training.train import train

    if not options.save_every >= 0:  # refuses nan too
        raise UserError(f"--save-every must be at least 0, not {options.save_every:g}")
    locate_model(options.spec.encoder.model)  # before the name, which needs a valid path
    out = options.out or Path("runs") / options.spec.resolved().name
    present = read_run(out)
    names = ("resume", "save_every", "tensorboard", "log_to", "keep_states", "trunk")
    how = {name: getattr(options, name) for name in names}
    try:
        result = train(options.spec, out, progress=True, launcher=launcher, **how)
    except WorkerFailure as failure:
        print(f"scala-lab: error: {failure}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":
        show_result(result, already_finished=present is not None and present.ended)
    return 0 if result.status == "finished" else 1


def show_result(result: RunResult, already_finished: bool) -> None:
    """Print how a run ended, its metrics and its speed, and where its checkpoint is."""
    from scala_lab.training.progress import describe_metrics

    console, record = result_console(), result.record
    if already_finished:
        console.print(f"{result.folder} holds this run already, {result.status}: not trained again", highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("run", f"{record['name']}  ({result.status})")
    if result.status == "diverged":
        why = record.get("error") or f"the loss is not finite at step {record['steps_done']}"
        table.add_row("diverged", f"{why} of {record['steps']}")
    for split, metrics in result.metrics.items():
        table.add_row(split, describe_metrics({split: metrics}).removeprefix(f"{split} "))
    if best := record.get("best"):
        table.add_row("best epoch", f"{best['epoch']:g}: {describe_metrics(best['metrics'])}")
    if timing := record.get("timing"):
        table.add_row(
            "training",
            f"{record['steps_done']} steps of {result.spec.batches.batch_size} in {timing['train_seconds']:.1f} s, "
            f"{timing['samples_per_second']:,.0f} samples/s, peak rate {record['learning_rate']:.3g}",
        )
        total = sum(timing["phases"].values()) or 1.0
        shares = {name: seconds / total for name, seconds in timing["phases"].items()}
        table.add_row("time", ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005))
    counts = record.get("counts", {})
    if counts.get("skipped_noise"):
        table.add_row("left out", f"{counts['skipped_noise']} noise terms that were not finite")
    if counts.get("skipped_steps"):
        table.add_row("skipped", f"{counts['skipped_steps']} steps whose gradient overflowed in fp16")
    for file, count in record["skipped_rows"].items():
        table.add_row("malformed", f"{count} rows of {file} were passed over")
    if result.status == "finished":
        table.add_row("checkpoint", str(result.checkpoint))
    console.print(table, highlight=False)
