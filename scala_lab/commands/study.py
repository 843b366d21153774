"""`scala-lab study`: run studies by name or by file, and the sweep and report that `scala-lab reproduce` shares."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scala_lab.cli import result_console
from scala_lab.commands.execution import ExecutionOptions, print_plan
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.report.chapter import Chapter, Manifest
from scala_lab.study.api import Study, all_studies, find_study, place_in_paper
from scala_lab.study.profiles import find_profile
from scala_lab.study.tuning import Choices
from scala_lab.sweep.cells import Cell, runs_alone
from scala_lab.sweep.store import Records, RunStore


@dataclass(frozen=True)
class StudyOptions:
    """How and where the runs of studies are trained."""

    profile: str = "embedded"
    """Which models, tasks and grids: embedded (no download, no GPU), laptop (a small pretrained encoder on GLUE) or
    paper (the paper's models and grids, for a cluster)."""
    out: Path | None = None
    """Folder of the report; default reports/<profile>. Studies that it holds already stay in it."""
    store: Path = Path("runs/store")
    """Where runs and measurements are kept. What is there is not trained again."""
    data_dir: Path | None = None
    """laptop and paper: folder in the classic GLUE layout; without it GLUE comes from the hub."""
    seeds: tuple[int, ...] = ()
    """Seeds in place of the profile's; the trials that tune settings keep theirs."""
    tasks: tuple[str, ...] = ()
    """Tasks in place of the profile's."""
    model: str | None = None
    """An encoder in place of the profile's: a hub name or a folder."""
    from_report: bool = False
    """Do not make again the runs and measurements whose records the report in --out holds, where their store is gone.
    A run is trained again only if something of its model is still to be measured."""
    report_only: bool = False
    """Train and measure nothing: report what is in the store and in the report so far."""
    timings: bool = True
    """Take measurements of time, last and alone: nothing else should run on this machine. --no-timings leaves them
    for later."""
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)


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
    sweep: StudyOptions = field(default_factory=StudyOptions)


def run(options: RunStudies) -> int:
    """List, plan, or train and report."""
    if options.list_:
        table = Table("study", "in the paper", "question")
        for name, study in all_studies().items():
            table.add_row(name, study.source, study.question)
        result_console().print(table)
        return 0
    if not options.names:
        raise UserError("study needs a name, or the file of a study of your own: `scala-lab study --list` shows names")
    studies = {reference: find_study(reference) for reference in dict.fromkeys(options.names)}
    return sweep_studies(studies, options.sweep, ["study", *studies])


def sweep_studies(studies: Mapping[str, Study], options: StudyOptions, command: Sequence[str]) -> int:
    """Train what the studies need and the store lacks, and write the report; exit code 1 if a run or a study failed.

    `studies` are given by reference (see `find_study`), `command` without the flags of the sweep.
    """
    from scala_lab.report.build import check_report_folder, write_report

    _check_options(studies, options)
    manifest, out = _manifest(studies, options, command), options.out or Path("reports") / options.profile
    keep_records = options.from_report or options.report_only
    present = check_report_folder(out, manifest) if keep_records or not options.execution.dry_run else None
    reported = Records() if present is None else Records.read(out)
    profile, store = manifest.load_profile(), RunStore(options.store, reported if keep_records else None)

    def declare() -> tuple[dict[str, list[Cell]], Choices]:
        """Ask the studies for their cells, with settings as far as they are tuned, and the trials that tune them."""
        choices = Choices(store.record, ahead=options.execution.dry_run)
        named = {study.name: study.cells(profile.with_choices(choices)) for study in studies.values()}
        return {"tuning": [Cell(spec) for spec in choices.trials.values()], **named}, choices

    cells, choices = declare()
    if options.execution.dry_run:
        print_plan(cells, "study", store, options.execution.processes)
        return 0
    if present is not None:
        others = [reference for reference in present.studies if reference not in studies]
        manifest = replace(manifest, studies=_in_page_order([*studies, *others]))
    while choices.pending and not options.report_only:
        _train([Cell(spec) for spec in choices.pending.values()], store, options.execution)
        cells, choices = declare()
    wanted = list(chain(*cells.values()))
    if not options.report_only:
        taken = [cell for cell in wanted if options.timings or not runs_alone(cell.item)]
        _train(taken, store, options.execution)
    records = store.records(wanted)
    failed = [record["status"] for record in (*records.runs.values(), *records.measurements.values())].count("failed")
    records = Records({**reported.runs, **records.runs}, {**reported.measurements, **records.measurements})
    code = print_outcome(out, write_report(out, manifest, records))
    if failed:
        items = f"{failed} runs or measurements" if failed > 1 else "a run or measurement"
        print(f"scala-lab: {items} failed; the report says why, --retry-failed tries again", file=sys.stderr)
    return 1 if failed else code


def _check_options(studies: Mapping[str, Study], options: StudyOptions) -> None:
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


def _manifest(studies: Mapping[str, Study], options: StudyOptions, command: Sequence[str]) -> Manifest:
    arguments = ["scala-lab", *command, "--profile", options.profile]
    for flag, value in (("--out", options.out), ("--data-dir", options.data_dir), ("--model", options.model)):
        arguments += [flag, str(value)] if value is not None else []
    for flag, values in (("--seeds", options.seeds), ("--tasks", options.tasks)):
        arguments += [flag, *map(str, values)] if values else []
    return Manifest(
        profile=options.profile,
        data_dir=str(options.data_dir) if options.data_dir is not None else None,
        model=options.model,
        model_is_folder=options.model is not None and Path(options.model).expanduser().is_dir(),
        device=RunSpec().resolved().machine.device,
        seeds=options.seeds,
        tasks=options.tasks,
        studies=_in_page_order(studies),
        command=shlex.join(arguments),
    )


def _in_page_order(references: Iterable[str]) -> tuple[str, ...]:
    """Sort studies of the paper first, in its order, then those beyond it, then the user's own."""

    def position(reference: str) -> tuple[bool, tuple[int, int, str, str]]:
        try:
            return reference.endswith(".py"), place_in_paper(find_study(reference))
        except UserError:  # a study of an older report whose file is gone
            return True, (4, 0, "", reference)

    return tuple(sorted(references, key=position))


def _train(cells: Sequence[Cell], store: RunStore, options: ExecutionOptions) -> None:
    """Run the sweep, unless a model or a task of a run that is still to be trained cannot be loaded."""
    from scala_lab.data.sources import load_task
    from scala_lab.models.loading import load_tokenizer
    from scala_lab.sweep.engine import run_sweep

    executor = options.open_executor()
    items = store.by_status(cells)
    specs = [item for item in items.get("missing", []) + items.get("running", []) if isinstance(item, RunSpec)]
    for model in dict.fromkeys(spec.encoder.model for spec in specs):
        load_tokenizer(model)
    for data in {spec.data.task: spec.data for spec in specs}.values():
        load_task(data)
    run_sweep(cells, store, executor, progress=True, retry_failed=options.retry_failed)


def print_outcome(out: Path, chapters: Sequence[Chapter]) -> int:
    """Say where the page is, and which studies could not be analysed; return 1 if there are any, else 0."""
    broken = [chapter for chapter in chapters if chapter.failure]
    for chapter in broken:
        print(f"scala-lab: study {chapter.name} could not be analysed: {chapter.failure}", file=sys.stderr)
    print(f"report: {out / 'index.html'}")
    return 1 if broken else 0
