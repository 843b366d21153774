"""`scala-lab train`: one run."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scala_lab.cli import parse_flags
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.processes import launched_workers

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


def parse(args: list[str]) -> Train:
    """Flags over the config file, or over the settings of the run to resume."""
    options = parse_flags(Train, args, prog="scala-lab train")
    stored = _spec_of_run(options.out) if options.resume and options.out is not None else None
    if options.config is not None:
        below: RunSpec | None = RunSpec.from_toml(options.config)
    else:
        below = stored
    if below is not None:
        options = parse_flags(Train, args, prog="scala-lab train", default=Train(spec=below))
    if stored is not None and stored.recipe.method != options.spec.recipe.method:
        # said here, because the stored settings are full of options that another method does not have
        changed = f"method: {stored.recipe.method} -> {options.spec.recipe.method}"
        raise UserError(f"{options.out} holds another run ({changed}): choose another --out")
    workers = launched_workers(options.spec.machine.workers)
    return dataclasses.replace(options, spec=options.spec.override(workers=workers))


def run(options: Train, launcher: WorkerLauncher | None = None) -> int:
    """Train, here or where a launcher starts workers, and show the result; exit code 1 for a run that diverged."""
    from scala_lab.cli import show_result
    from scala_lab.models.loading import locate_model
    from scala_lab.training import train
    from scala_lab.training.distributed import WorkerFailure

    if not options.save_every >= 0:  # refuses nan too
        raise UserError(f"--save-every must be at least 0, not {options.save_every:g}")
    locate_model(options.spec.encoder.model)
    out = options.out or Path("runs") / options.spec.resolved().name
    finished_before = _finished(out)
    try:
        result = train(
            options.spec,
            out,
            resume=options.resume,
            progress=True,
            save_every=options.save_every,
            tensorboard=options.tensorboard,
            launcher=launcher,
        )
    except WorkerFailure as failure:
        print(f"scala-lab: error: {failure}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":
        show_result(result, already_finished=finished_before)
    return 0 if result.status == "finished" else 1


def _spec_of_run(out: Path) -> RunSpec | None:
    from scala_lab.training.run_dir import read_run

    present: RunResult | None = read_run(out)
    return None if present is None else present.spec


def _finished(out: Path) -> bool:
    from scala_lab.training.run_dir import read_run

    present: RunResult | None = read_run(out)
    return present is not None and present.ended
