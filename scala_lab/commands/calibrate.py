"""`scala-lab calibrate`: how fast this machine is, and what more workers would bring."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from scala_lab.cli import result_console
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.methods.recipes import find_recipe

if TYPE_CHECKING:
    from scala_lab.timing.calibration import Calibration

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SMALL_BATCH = 32  # the batch size of the paper's baseline; projected beside the spec's


@dataclass(frozen=True)
class Calibrate:
    """Measure this machine for about a minute, and project how long an epoch takes on more workers.

    Computing, updates and messages are timed piece by piece, no run is. The projection is for hosts like this one,
    each filled with workers, and joined by links of each --rate; without one, as if all were one host.

        scala-lab calibrate --task mnli --data-dir glue --model bert-base-uncased
        scala-lab calibrate --rate 10gbit 1gbit --out machine.json
    """

    spec: RunSpec = field(default_factory=lambda: RunSpec.of(threads=1))
    rate: tuple[str, ...] = ()
    """Links between hosts, such as 10gbit; measured between two namespaces of this machine, which takes root."""
    out: Path | None = None
    """Write the constants to this JSON file."""


def run(options: Calibrate) -> int:
    """Measure, print and write."""
    from scala_lab.files import write_json
    from scala_lab.models.loading import locate_model
    from scala_lab.timing.calibration import calibrate
    from scala_lab.timing.hosts import bits_per_second, unsupported_reason

    spec = options.spec.resolved()
    if find_recipe(spec.recipe.method).step not in ("plain", "scala"):
        method = f"not --method {spec.recipe.method}: choose another"
        raise UserError(f"calibrate: a projection knows plain steps and ScaLA's, {method}")
    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out {options.out} is a folder: give the name of a file")
    for rate in options.rate:
        bits_per_second(rate)
    if options.rate and (lack := unsupported_reason()):
        raise UserError(f"--rate: {lack}")
    locate_model(spec.encoder.model)
    calibration, console = calibrate(spec, options.rate), result_console()
    if options.out is not None:
        write_json(options.out, calibration.to_dict())
    _show_constants(console, calibration)
    _show_projection(console, calibration, spec)
    if options.out is not None:
        console.print(f"constants  {options.out}", highlight=False)
    return 0


def _show_constants(console: Console, calibration: Calibration) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, computing in (("plain step", calibration.plain), ("step with noise", calibration.noise)):
        table.add_row(
            name,
            f"{1e3 * computing.per_step:.2f} ms + {1e3 * computing.per_micro_batch:.2f} ms per micro-batch "
            f"+ {1e6 * computing.per_row:.1f} µs per row + {1e6 * computing.per_token:.2f} µs per token "
            f"+ {1e9 * computing.per_square:.2f} ns per squared length",
        )
    for name, seconds in calibration.update.items():
        table.add_row(f"{name} update", f"{1e3 * seconds:.2f} ms")
    slower = f"computing {calibration.crowding:.2f} times as long, updates {calibration.update_crowding:.2f} times"
    table.add_row("all cores busy", f"{slower}, {calibration.cores} workers")
    for name, link in calibration.links.items():
        table.add_row("link", f"{name}: {1e6 * link.latency:.0f} µs a round, {link.bandwidth / 1e6:,.0f} MB/s")
    table.add_row("gradient", f"{calibration.gradient_bytes / 1e6:.1f} MB")
    console.print(table, highlight=False)


def _show_projection(console: Console, calibration: Calibration, spec: RunSpec) -> None:
    from scala_lab.timing.model import Workload, best_workers, epoch_seconds
    from scala_lab.training.preparation import prepare

    lengths, recipe = prepare(spec).train.lengths, spec.recipe
    noisy = find_recipe(recipe.method).step == "scala" and bool(recipe.lambda_)
    share = max(0.0, 1 - (recipe.delay or 0.0) / spec.optim.epochs) if noisy else 0.0
    optimizer = "adamw" if spec.optim.optimizer == "adamw" else "lamb"
    work = Workload(len(lengths), float(lengths.mean()), spec.batches.micro_batch, optimizer, share)
    models = {name: calibration.model(name, calibration.cores) for name in calibration.links}
    columns = {
        f"B={batch}, {name}": (model, work, batch)
        for name, model in (models or {"one host": calibration.model()}).items()
        for batch in (SMALL_BATCH, spec.batches.batch_size)
    }
    table = Table("workers", *columns, box=None, pad_edge=False)
    for workers in WORKERS:
        seconds = [epoch_seconds(*column, workers) for column in columns.values()]
        table.add_row(f"{workers}", *("" if math.isnan(value) else f"{value:.3g} s" for value in seconds))
    console.print(f"\nprojected seconds per epoch of {work.rows:,} rows of {spec.data.task}", highlight=False)
    console.print(table, highlight=False)
    for title, column in columns.items():
        console.print(f"{title}: shortest on {best_workers(*column, WORKERS)} workers", highlight=False)
