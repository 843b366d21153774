"""`scala-lab sweep`: any grid over any settings, on any data and model."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.table import Table

from scala_lab.cli import parse_flags, result_console
from scala_lab.commands.execution import ExecutionOptions, print_plan
from scala_lab.config import RunSpec, read_config
from scala_lab.errors import UserError
from scala_lab.report.sweep import View, write_sweep
from scala_lab.sweep.cells import Cell
from scala_lab.sweep.grid import Grid, SweepFolder, left_out_text, read_axis
from scala_lab.training.trackers import TrackerName, check_trackers


@dataclass(frozen=True)
class Sweep:
    """Train every combination of the values of some settings, each with several seeds, and compare them.

        scala-lab sweep --grid batch_size=32,256,1024 lr=1e-4,3e-4,1e-3 --seeds 5 --out sweep1
        scala-lab sweep --grid method=lamb,scala,freelb delay=3,5 --seeds 3 --task my.csv --model my-model --out sweep2
        scala-lab sweep grid.toml --tuning-samples 500 --heldout-samples 2000 --out sweep3 --dry-run
        scala-lab sweep --grid lr=3e-3 --out sweep1      # one more rate: everything else is as in sweep1

    Every setting of `scala-lab train` can be an axis of --grid; as a flag it is fixed for all runs. An option that only
    some of the methods have is left out for the others. In --out: runs.csv and runs.parquet with one row a run, a heat
    map, best.csv, settings.csv (each as LaTeX too), and index.html, which shows them.

    An interrupted command goes on where it was when it is given again. Another grid with the same fixed settings, or
    more seeds, adds to what is in --out. Runs have one thread each unless --threads says otherwise.

    grid.toml holds fixed settings as in --config of `scala-lab train`, and the grid:

        task = "my.csv"
        seeds = 5
        [grid]
        lr = [1e-4, 3e-4]
        method = ["lamb", "scala"]
    """

    file: tyro.conf.Positional[Path | None] = None
    """TOML file with fixed settings, `seeds` and a table [grid]; flags override it."""
    grid: tuple[str, ...] = ()
    """Axes of the grid, name=a,b,c each. `none` leaves a setting to its default, true and false are those of a switch;
    seed=3,4 are seeds of your own."""
    seeds: int | None = None
    """Train every combination with the seeds 0 to n-1; default the one of --seed."""
    out: Path | None = None
    """Folder of the runs and of all results."""
    log_to: tuple[TrackerName, ...] = ()
    """Give settings and metrics of every run to these trackers as well, under their own environment variables."""
    view: View = field(default_factory=View)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    spec: RunSpec = field(default_factory=RunSpec)
    command: tyro.conf.Suppress[str] = ""


def parse(args: list[str]) -> Sweep:
    """Read flags over the file, or over the fixed settings of the sweep in --out."""
    args, given = _join_grids(args), args
    options = parse_flags(Sweep, args, prog="scala-lab sweep")
    if options.out is None:
        raise UserError("sweep needs --out, the folder of its runs and results")
    fixed = None
    if options.file is not None:
        values = {name: value for name, value in read_config(options.file).items() if name not in ("grid", "seeds")}
        fixed = RunSpec.from_dict(values, source=str(options.file))
    elif (present := SweepFolder.open(options.out)).grids:
        fixed = present.grids[-1].fixed
    if fixed is not None:
        options = parse_flags(Sweep, args, prog="scala-lab sweep", default=Sweep(spec=fixed))
    return dataclasses.replace(options, command=shlex.join(["scala-lab", "sweep", *given]))


def _join_grids(args: list[str]) -> list[str]:
    """Return the arguments with the values of every --grid behind the first one: a second does not replace it."""
    words: list[str] = []
    axes: list[str] = []
    in_grid = False
    for word in args:
        if word.startswith("-"):
            in_grid = word == "--grid" or word.startswith("--grid=")
            if in_grid:
                axes += [word.partition("=")[2]] if "=" in word else []
                continue
        (axes if in_grid else words).append(word)
    return [*words, "--grid", *axes] if axes or "--grid" in args else words


def run(options: Sweep) -> int:
    """Train what is missing and write the results; exit code 1 if a run failed."""
    assert options.out is not None
    check_trackers(options.log_to)
    sweep = _declare(options, SweepFolder.open(options.out))
    view = options.view.over(sweep.view)
    view.check(sweep)
    left_out = sweep.left_out()
    if left_out:
        print(f"scala-lab: {left_out_text(left_out)}", file=sys.stderr)
    sweep.check_inputs()
    if options.execution.dry_run:
        groups: dict[str, list[Cell]] = {}
        for cell in sweep.cells():
            groups.setdefault(cell.item.recipe.method, []).append(cell)  # type: ignore[union-attr]
        print_plan(groups, "method", sweep.store, options.execution.processes)
        return 0
    executor = options.execution.open_executor()
    sweep = dataclasses.replace(sweep, view=asdict(view), command=options.command)
    sweep.run(executor, progress=True, retry_failed=options.execution.retry_failed, log_to=options.log_to)
    return show_sweep(sweep)


def _declare(options: Sweep, sweep: SweepFolder) -> SweepFolder:
    """Return the sweep with the grid that the options add to it, or go on with the one it has."""
    axes: dict[str, Any] = {}
    seeds: Any = options.seeds
    if options.file is not None:
        content = read_config(options.file)
        axes, seeds = content.get("grid", {}), content.get("seeds") if seeds is None else seeds
        if not isinstance(axes, dict):
            raise UserError(f"{options.file}: grid must be a table, not {axes!r}")
        try:
            Grid.of(options.spec, axes, content.get("seeds"))
        except UserError as error:
            raise UserError(f"{options.file}: {error}") from None
    named: dict[str, Any] = {}
    for text in options.grid:
        name, values = read_axis(text)
        if name in named:
            raise UserError(f"--grid has {name} twice: give all of its values at once")
        named[name] = values
    axes = {name.replace("-", "_").rstrip("_"): values for name, values in axes.items()} | named
    last = sweep.grids[-1] if sweep.grids else None
    if last is not None and options.file is None and seeds is None and "seed" not in axes:
        seeds = last.seeds if options.spec.seed == last.fixed.seed else None
    if not axes:
        if last is None:
            raise UserError("sweep needs a grid: --grid lr=1e-4,3e-4 ..., or a TOML file with a table [grid]")
        axes = dict(last.axes)
    return sweep.add(Grid.of(options.spec, axes, seeds))


def show_sweep(sweep: SweepFolder) -> int:
    """Write the results of a sweep and show the best settings; exit code 1 if a run failed."""
    runs, best = write_sweep(sweep)
    table = Table(title=best.caption, title_justify="left")
    for column in best.columns:
        table.add_column(column.heading, justify="right" if column.numeric else "left")
    for texts in zip(*(column.texts for column in best.columns), strict=True):
        table.add_row(*texts)
    console = result_console()
    console.print(table)
    for note in best.notes:
        console.print(note, highlight=False)
    print(f"results: {sweep.folder / 'index.html'}")
    records = [sweep.store.record(cell.item) or {} for cell in sweep.cells()]
    untracked = [record for record in records if "trackers_failed" in record]
    if untracked:
        why = "; ".join(f"{name}: {error}" for name, error in untracked[0]["trackers_failed"].items())
        print(f"scala-lab: warning: trackers did not get all of {len(untracked)} runs ({why})", file=sys.stderr)
    failed = int((runs["status"] == "failed").sum())
    if failed:
        count = f"{failed} runs" if failed > 1 else "a run"
        print(f"scala-lab: {count} failed; runs.csv says why, --retry-failed tries again", file=sys.stderr)
    return 1 if failed else 0
