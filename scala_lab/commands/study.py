"""`scala-lab study`: run studies by name, or one of your own by its file.

Looking at what a sweep needs from outside before any run is started.

`--dry-run`: what a sweep has to do, and what it costs.

What `study` and `reproduce` share: flags of a sweep, its plan on --dry-run, and the report at the end.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from scala_lab.errors import UserError
from scala_lab.study.api import Study
from scala_lab.study.profiles import find_profile
from scala_lab.sweep.cells import Cell, Measurement

if TYPE_CHECKING:
    from scala_lab.report.chapter import Chapter, Manifest
    from scala_lab.sweep.cells import Cell
    from scala_lab.sweep.cost import SweepEstimate
    from scala_lab.sweep.store import Records, RunStore
    from scala_lab.sweep.work import Executor


def check_inputs(cells: Sequence[Cell], store: RunStore) -> None:
    """Refuse a sweep whose models or tasks are not to be had: every one of its runs would fail.

    Only runs that are still to be trained count, so that what is finished can be reported anywhere.

    Raises:
        UserError: A model or a task cannot be loaded.
    """
    from scala_lab.data.sources import load_task
    from scala_lab.models.loading import load_tokenizer

    todo = store.by_status(cells)
    specs = [what for status in ("missing", "running") for what in todo.get(status, ())]
    runs = [spec for spec in specs if not isinstance(spec, Measurement)]
    for model in dict.fromkeys(spec.encoder.model for spec in runs):
        load_tokenizer(model)
    for data in {spec.data.task: spec.data for spec in runs}.values():
        load_task(data)


def print_plan(cells: Mapping[str, Sequence[Cell]], folder: Path, processes: int | None) -> None:
    """Print runs, steps, forward passes and time of each study and of all, and how much of it is done.

    Args:
        cells: By study.
        folder: The store, where what is done lies.
        processes: Runs at once.
    """
    from rich.table import Table

    from scala_lab.cli import result_console
    from scala_lab.sweep.cost import estimate
    from scala_lab.sweep.store import ENDED, RunStore

    store = RunStore(folder)
    unique_items = [cell for needed in cells.values() for cell in needed]
    table = Table("study")
    for heading in ("runs", "measurements", "steps", "forward passes", "time here"):
        table.add_column(heading, justify="right")
    for name, needed in cells.items():
        table.add_row(name, *_row(estimate(needed, store=store, processes=processes)))
    table.add_section()
    total = estimate(unique_items, store=store, processes=processes)
    table.add_row("all, shared runs once", *_row(total), style="bold")
    console = result_console()
    console.print(table)
    by_status = store.by_status(unique_items)
    done = sum(len(found) for status, found in by_status.items() if status in ENDED)
    console.print(f"{done} of {total.runs + total.measurements} are done in {folder}.", highlight=False)
    for note in total.notes:
        console.print(note[0].upper() + note[1:] + ".", highlight=False)


def _row(work: SweepEstimate) -> list[str]:
    from scala_lab.sweep.progress import describe_seconds

    time = "unknown" if work.seconds is None else describe_seconds(work.seconds)
    return [f"{work.runs:,}", f"{work.measurements:,}", f"{work.steps:,}", f"{work.forward_passes:,.0f}", time]


STORE = Path("runs/store")


@dataclass(frozen=True)
class SlurmOptions:
    """What a job on the cluster asks for."""

    partition: str | None = None
    """slurm: the partition; default the cluster's own."""
    minutes: int = 24 * 60
    """slurm: time limit of a job; one that reaches it goes on in a new job."""
    workers_per_node: int = 8
    """slurm: most workers of a run on one node."""
    memory_gb: float | None = None
    """slurm: memory of a job per node; default the cluster's own."""
    sbatch: tuple[str, ...] = ()
    """slurm: further settings, as in --sbatch account=lab qos=long."""
    setup: tuple[str, ...] = ()
    """slurm: shell lines to run before a job, as in --setup 'module load cuda'."""


@dataclass(frozen=True)
class SweepOptions:
    """How and where the runs of studies are trained."""

    profile: str = "embedded"
    """Which models, tasks and grids: embedded (no download, no GPU), laptop (a small pretrained encoder on GLUE) or
    paper (the paper's models and grids, for a cluster)."""
    out: Path | None = None
    """Folder of the report; default reports/<profile>. Studies that it holds already stay in it."""
    store: Path = STORE
    """Where runs and measurements are kept. What is there is not trained again."""
    data_dir: Path | None = None
    """laptop and paper: folder in the classic GLUE layout; without it GLUE comes from the hub."""
    model: str | None = None
    """An encoder in place of the profile's: a hub name or a folder."""
    executor: Literal["local", "slurm"] = "local"
    """local: processes on this machine; slurm: array jobs on a cluster."""
    processes: int | None = None
    """Runs at once; default as many as the cores have room for."""
    dry_run: bool = False
    """Print what there is to do and what it costs, and do nothing."""
    retry_failed: bool = False
    """Try again what failed before; else it stays failed."""
    slurm: SlurmOptions = field(default_factory=SlurmOptions)


def sweep_studies(studies: Mapping[str, Study], options: SweepOptions, command: Sequence[str]) -> int:
    """Train what the studies need and is not there, then write the report.

    Args:
        studies: By reference.
        options: Flags.
        command: The words of the command without the flags of the sweep.

    Returns:
        The exit code: 1 if a run or a study failed, which the report then shows.
    """
    from scala_lab.report.build import check_report_folder, write_report

    manifest = _manifest(studies, options, command)
    profile = manifest.load_profile()
    cells = {reference: study.cells(profile) for reference, study in studies.items()}
    if options.dry_run:
        named = {studies[reference].name: needed for reference, needed in cells.items()}
        print_plan(named, options.store, options.processes)
        return 0
    out = options.out or Path("reports") / options.profile
    present = check_report_folder(out, manifest)
    if present is not None:
        kept = [reference for reference in present.studies if reference not in studies]
        manifest = replace(manifest, studies=in_page_order([*studies, *kept]))
    records = _train([cell for needed in cells.values() for cell in needed], options)
    if present is not None:
        records = _with_those_of(out, records)
    chapters = write_report(out, manifest, records)
    failed = _say_what_failed(chapters, records, [cell for needed in cells.values() for cell in needed])
    print(f"report: {out / 'index.html'}")
    return 1 if failed else 0


def in_page_order(references: Sequence[str]) -> tuple[str, ...]:
    """Studies of the paper first, in its order, then those beyond it, then the user's own."""
    from scala_lab.study.api import find_study, place_in_paper

    def place(reference: str) -> tuple[bool, tuple[int, int, str, str]]:
        own = reference.endswith(".py")
        try:
            return own, place_in_paper(find_study(reference))
        except UserError:  # a report remembers it, but it is gone
            return True, (4, 0, "", reference)

    return tuple(sorted(references, key=place))


def _manifest(studies: Mapping[str, Study], options: SweepOptions, command: Sequence[str]) -> Manifest:
    from scala_lab.config import RunSpec
    from scala_lab.report.chapter import Manifest

    _check(studies, options)
    words = ["scala-lab", *command, "--profile", options.profile]
    for flag, value in (("--out", options.out), ("--data-dir", options.data_dir), ("--model", options.model)):
        words += [flag, str(value)] if value is not None else []
    return Manifest(
        profile=options.profile,
        data_dir=str(options.data_dir) if options.data_dir is not None else None,
        model=options.model,
        model_is_folder=options.model is not None and Path(options.model).expanduser().is_dir(),
        device=RunSpec().resolved().machine.device,
        studies=in_page_order(list(studies)),
        command=shlex.join(words),
    )


def _check(studies: Mapping[str, Study], options: SweepOptions) -> None:
    """Refuse what would fail only after hours of training."""
    from scala_lab.models.loading import locate_model

    find_profile(options.profile)
    names = [study.name for study in studies.values()]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of the studies are named {name!r}: their files would be the same")
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise UserError(f"data folder {options.data_dir} does not exist")
    if options.model is not None:
        locate_model(options.model)
    if options.processes is not None and options.processes < 1:
        raise UserError(f"--processes must be at least 1, not {options.processes}")


def _train(cells: list[Cell], options: SweepOptions) -> Records:
    from scala_lab.sweep.engine import run_sweep
    from scala_lab.sweep.store import RunStore

    store, executor = RunStore(options.store), _executor(options)
    check_inputs(cells, store)
    return run_sweep(cells, store, executor, progress=True, retry_failed=options.retry_failed)


def _executor(options: SweepOptions) -> Executor:
    if options.executor == "slurm":
        from scala_lab.sweep.slurm import SlurmCluster

        settings = dict(_setting(text) for text in options.slurm.sbatch)
        return SlurmCluster(
            options.slurm.partition,
            minutes=options.slurm.minutes,
            workers_per_node=options.slurm.workers_per_node,
            memory_gb=options.slurm.memory_gb,
            setup=options.slurm.setup,
            options=settings,
            **({"most_at_once": options.processes} if options.processes else {}),
        )
    from scala_lab.sweep.local import LocalPool

    return LocalPool(options.processes)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"--sbatch takes name=value, not {text!r}")
    return name, value


def _with_those_of(out: Path, records: Records) -> Records:
    """The new records beside those that the report held already."""
    from scala_lab.sweep.store import Records

    old = Records.read(out)
    return Records({**old.runs, **records.runs}, {**old.measurements, **records.measurements})


def _say_what_failed(chapters: Sequence[Chapter], records: Records, cells: Sequence[Cell]) -> bool:
    """One sentence each on stderr for runs and for studies that failed."""
    from scala_lab.sweep.store import unique_items

    needed = unique_items(cells)
    ended = [record["status"] for key, record in {**records.runs, **records.measurements}.items() if key in needed]
    broken = [chapter for chapter in chapters if chapter.failure]
    for chapter in broken:
        print(f"scala-lab: study {chapter.name} could not be analysed: {chapter.failure}", file=sys.stderr)
    if "failed" in ended:
        count = ended.count("failed")
        what = f"{count} runs or measurements" if count > 1 else "a run or measurement"
        print(f"scala-lab: {what} failed; the report says why, --retry-failed tries again", file=sys.stderr)
    return bool(broken) or "failed" in ended


@dataclass(frozen=True)
class RunStudies:
    """Train the runs that studies need, then write figures, tables, verdicts and a page.

        scala-lab study --list
        scala-lab study sharpness large_batch_methods
        scala-lab study docs/examples/my_study.py --out reports/mine
        scala-lab study sharpness --profile laptop --data-dir glue --dry-run

    Runs are kept in --store and shared between studies; an interrupted command goes on where it was.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of studies, or files of your own that hold a STUDY."""
    list_: Annotated[bool, tyro.conf.arg(name="list")] = False
    """List all studies and end."""
    sweep: SweepOptions = field(default_factory=SweepOptions)


def run(options: RunStudies) -> int:
    """List, plan, or train and report."""
    from scala_lab.study.api import find_study

    if options.list_:
        _print_list()
        return 0
    if not options.names:
        raise UserError("study needs a name, or the file of a study of your own: `scala-lab study --list` shows names")
    studies = {reference: find_study(reference) for reference in dict.fromkeys(options.names)}
    return sweep_studies(studies, options.sweep, ["study", *studies])


def _print_list() -> None:
    from rich.table import Table

    from scala_lab.cli import result_console
    from scala_lab.study.api import all_studies

    table = Table("study", "in the paper", "question")
    for name, study in all_studies().items():
        table.add_row(name, study.source, study.question)
    result_console().print(table)
