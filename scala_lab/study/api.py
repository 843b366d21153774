"""A study is a declaration: which runs and measurements it needs, and how to read them; and how studies are found.

A study is a declaration: which runs and measurements it needs, and how to read them.

`cells` names what is needed and under which words the study knows it; `analyse` gets one row per cell, with these
words as columns beside what was found, and returns tables, figures and verdicts. A study does not train: runs are
addressed by their spec, so a run that six studies need is trained once.

Example:
    A study in one file::

        def cells(profile):
            return [
                Cell(profile.spec(task, method, profile.large_batch, seed=seed), task=task, method=method, seed=seed)
                for task in profile.tasks
                for method in ("lamb", "scala")
                for seed in profile.seeds
            ]

        def analyse(profile, frame):
            table = frame.pivot_table("score", "method", "task")
            return Findings(tables=[Tabulation("scores", table, "Scores by method and task.")])

        STUDY = Study("mine", "My study", "Does it help?", cells, analyse)

Finding studies: by name among the modules of `studies`, or by the path of a file of the user's own.

A study's module has `STUDY = Study(...)`. Modules of `studies` whose name starts with an underscore hold what
several studies share. What `find_study` was given, the reference, is also what a report remembers a study by.

One row per cell of a study, which is all that its analysis sees.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from scala_lab.errors import UserError, nearest
from scala_lab.methods.cost import forward_passes
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.store import Records

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scala_lab.study.profiles import Profile
    from scala_lab.study.verdicts import Claim, ClaimRecord


@dataclass(frozen=True)
class Tabulation:
    """A table for the report.

    Attributes:
        name: Part of the file's name, after the study's; '' for the study's main table.
        frame: Its index, where it has names, becomes the first columns.
        caption: With the paper's number of the table, where it has one.
        notes: Below the table: budget, edge-best rates, what is projected.
    """

    name: str
    frame: pd.DataFrame
    caption: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Drawing:
    """A figure for the report.

    Attributes:
        name: Part of the file's name, after the study's; '' for the study's main figure.
        figure: Ready to save.
        caption: With the paper's number of the figure, where it has one.
    """

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Findings:
    """What a study returns.

    Attributes:
        tables: In the order of the page.
        figures: In the order of the page.
        claims: Verdicts on claims of the paper, and on ours.
        found: One to three sentences with numbers, computed from this run, to stand beside what the paper found.
    """

    tables: Sequence[Tabulation] = ()
    figures: Sequence[Drawing] = ()
    claims: Sequence[ClaimRecord] = ()
    found: str = ""


@dataclass(frozen=True)
class Study:
    """A question, the runs that answer it, and how to read them.

    Attributes:
        name: As in `scala-lab study NAME`; also the start of its files' names.
        title: Heading of its page.
        question: One sentence.
        cells: What is needed under a profile.
        analyse: From the rows of the cells to findings. Called only when at least one cell is there; rows of cells
            that were not run have status `missing`, failed ones `failed`, diverged ones `diverged`.
        source: Figure or table of the paper; '' for a study beyond it.
        paper_found: What the paper reports, in our words and its figures.
        claims: What it judges.
    """

    name: str
    title: str
    question: str
    cells: Callable[[Profile], list[Cell]]
    analyse: Callable[[Profile, pd.DataFrame], Findings]
    source: str = ""
    paper_found: str = ""
    claims: Sequence[Claim] = ()


PACKAGE = "studies"


def study_names() -> list[str]:
    """Names of all studies in the package, by the alphabet; nothing is imported but the package."""
    package = importlib.import_module(PACKAGE)
    return sorted(found.name for found in pkgutil.iter_modules(package.__path__) if not found.name.startswith("_"))


def find_study(reference: str) -> Study:
    """The study of a name, or of a path that ends in .py.

    Raises:
        UserError: There is no such study or file, the file cannot be imported, or it has no `STUDY`.
    """
    if reference.endswith(".py"):
        return _study_of(_load_file(Path(reference)), reference)
    name = reference.replace("-", "_")
    names = study_names()
    if name not in names:
        raise UserError(f"unknown study {reference!r}: {nearest(name, names)} (a study of your own: its file, mine.py)")
    return _study_of(importlib.import_module(f"{PACKAGE}.{name}"), f"{PACKAGE}/{name}.py")


def all_studies() -> dict[str, Study]:
    """Every study of the package by name: figures and tables of the paper in their order, then those beyond it."""
    studies = {name: find_study(name) for name in study_names()}
    return dict(sorted(studies.items(), key=lambda item: place_in_paper(item[1])))


def place_in_paper(study: Study) -> tuple[int, int, str, str]:
    """Sorts studies by their source: figures by number, tables by number, other sources, then those without one."""
    found = re.search(r"(Fig|Table)\w*\.?\s*(\d+)\s*(\(\w\))?", study.source)
    if found:
        return (0 if found[1] == "Fig" else 1, int(found[2]), found[3] or "", study.name)
    return (2 if study.source else 3, 0, "", study.name)


def main(study: Study, argv: Sequence[str] | None = None) -> int:
    """What a study's module runs as a program: `python -m studies.sharpness` is `scala-lab study sharpness`.

    Args:
        study: The module's `STUDY`.
        argv: Flags of `scala-lab study`; default those of the program.

    Returns:
        The exit code.
    """
    from scala_lab.cli import main as run_command

    words = sys.argv[1:] if argv is None else list(argv)
    return run_command(["study", reference_of(study), *words])


def reference_of(study: Study) -> str:
    """What `find_study` finds a study by: the name of its module in `studies`, or its file."""
    module = sys.modules[study.cells.__module__]
    name = module.__spec__.name if module.__spec__ is not None else module.__name__
    if name.startswith(f"{PACKAGE}."):
        return name.removeprefix(f"{PACKAGE}.")
    return os.path.relpath(str(module.__file__))


def _study_of(module: ModuleType, where: str) -> Study:
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise UserError(f"{where} has no STUDY = Study(...)")
    if not re.fullmatch(r"[A-Za-z0-9_]+", study.name):
        raise UserError(f"{where}: the study's name {study.name!r} is part of file names: letters, digits and _ only")
    return study


def _load_file(file: Path) -> ModuleType:
    """Import a user's file under its own name, and let the processes that train find it under that name too."""
    if not file.is_file():
        raise UserError(f"study file {file} does not exist")
    name, path = file.stem, file.resolve()
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    _make_importable(path.parent)
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.loader is None or spec.origin != str(path):
        taken = "is the name of another module" if spec is not None else "is no name that Python can import"
        raise UserError(f"study file {file}: {name!r} {taken}, rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        sys.modules.pop(name)
        raise
    except Exception as error:
        sys.modules.pop(name)
        raise UserError(f"study file {file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _make_importable(folder: Path) -> None:
    """Add a folder at the end of the module path, which processes started from here inherit."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


NUMBERS = (
    "score",
    "f1",
    "best_score",
    "best_epoch",
    "steps",
    "workers",
    "train_seconds",
    "samples_per_second",
    "forward_passes",
    "divergence",
    "noise_start",
)
"""Columns of a run's row that are nan unless it finished."""


def frame_of(cells: Sequence[Cell], records: Records) -> pd.DataFrame:
    """One row per cell: its labels, then what was found.

    Every row has `id` and `status` (finished, diverged, failed, running or missing). Rows of runs have `score` (the
    task's first metric on its first evaluation split, in percent; nan unless finished), one column per metric
    (`dev_accuracy`, in percent), `f1` (of that split, in percent, where the task has it), `best_score`, `best_epoch`,
    `rate` (the peak learning rate), `steps`, `workers`, `train_seconds`, `samples_per_second`, `forward_passes` (see
    there), `divergence` (mean r over the last step), `noise_start` (in epochs; nan for never) and `epochs` (the list
    of evaluations). Rows of measurements have the entries of their result. A label keeps its name before a finding of
    the same name.
    """
    import pandas as pd

    rows = []
    for cell in cells:
        record = records.find(cell)
        found = _measured(record) if isinstance(cell.item, Measurement) else _trained(record)
        status = "missing" if record is None else record["status"]
        rows.append({**found, "id": cell.key, "status": status, **cell.labels})
    frame = pd.DataFrame(rows)
    labels = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    return frame[[*labels, *(name for name in frame.columns if name not in labels)]]


def _measured(record: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(record["result"]) if record is not None and record["status"] == "finished" else {}


def _trained(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a run came to; numbers are nan unless it finished."""
    if record is None or record["status"] != "finished":
        nothing = dict.fromkeys(NUMBERS, math.nan)
        return {**nothing, "rate": record.get("learning_rate", math.nan) if record else math.nan}
    percents = {
        f"{split}_{name}": 100 * value for split, values in record["metrics"].items() for name, value in values.items()
    }
    score = next(iter(percents.values()))
    first_split, first_metric = next((split, name) for split, values in record["metrics"].items() for name in values)
    best = record.get("best") or {"epoch": math.nan, "metrics": record["metrics"]}
    return {
        "score": score,
        **percents,
        "f1": percents.get(f"{first_split}_f1", math.nan),
        "best_score": 100 * best["metrics"][first_split][first_metric],
        "best_epoch": best["epoch"],
        "rate": record["learning_rate"],
        "steps": record["steps_done"],
        "workers": record["spec"]["machine"]["workers"],
        "train_seconds": record["timing"]["train_seconds"],
        "samples_per_second": record["timing"]["samples_per_second"],
        "forward_passes": forward_passes(record),
        "divergence": _number(record["epochs"][-1].get("divergence") if record["epochs"] else None),
        "noise_start": _number(record.get("noise_start")),
        "epochs": record["epochs"],
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value
