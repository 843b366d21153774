"""What `study` and `reproduce` share: flags of a sweep, its plan on --dry-run, and the report at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scala_lab.errors import UserError
from scala_lab.runs.cell import Cell
from scala_lab.study.declaration import Study
from scala_lab.study.profiles import find_profile

if TYPE_CHECKING:
    from scala_lab.report.chapter import Chapter
    from scala_lab.report.manifest import Manifest
    from scala_lab.runs.executor import Executor
    from scala_lab.runs.records import Records

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
        from scala_lab.commands.sweep_plan import print_plan

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
    from scala_lab.study.discovery import find_study, place_in_paper

    def place(reference: str) -> tuple[bool, tuple[int, int, str, str]]:
        own = reference.endswith(".py")
        try:
            return own, place_in_paper(find_study(reference))
        except UserError:  # a report remembers it, but it is gone
            return True, (4, 0, "", reference)

    return tuple(sorted(references, key=place))


def _manifest(studies: Mapping[str, Study], options: SweepOptions, command: Sequence[str]) -> Manifest:
    from scala_lab.report.manifest import Manifest
    from scala_lab.spec import RunSpec

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
    from scala_lab.models.locate import locate_model

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
    from scala_lab.commands.sweep_inputs import check_inputs
    from scala_lab.runs.store import RunStore
    from scala_lab.runs.sweep import run_sweep

    store, executor = RunStore(options.store), _executor(options)
    check_inputs(cells, store)
    return run_sweep(cells, store, executor, progress=True, retry_failed=options.retry_failed)


def _executor(options: SweepOptions) -> Executor:
    if options.executor == "slurm":
        from scala_lab.runs.cluster import SlurmCluster

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
    from scala_lab.runs.local import LocalPool

    return LocalPool(options.processes)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"--sbatch takes name=value, not {text!r}")
    return name, value


def _with_those_of(out: Path, records: Records) -> Records:
    """The new records beside those that the report held already."""
    from scala_lab.runs.records import Records

    old = Records.read(out)
    return Records({**old.runs, **records.runs}, {**old.measurements, **records.measurements})


def _say_what_failed(chapters: Sequence[Chapter], records: Records, cells: Sequence[Cell]) -> bool:
    """One sentence each on stderr for runs and for studies that failed."""
    from scala_lab.runs.store import everything

    needed = everything(cells)
    ended = [record["status"] for key, record in {**records.runs, **records.measurements}.items() if key in needed]
    broken = [chapter for chapter in chapters if chapter.failure]
    for chapter in broken:
        print(f"scala-lab: study {chapter.name} could not be analysed: {chapter.failure}", file=sys.stderr)
    if "failed" in ended:
        count = ended.count("failed")
        what = f"{count} runs or measurements" if count > 1 else "a run or measurement"
        print(f"scala-lab: {what} failed; the report says why, --retry-failed tries again", file=sys.stderr)
    return bool(broken) or "failed" in ended
