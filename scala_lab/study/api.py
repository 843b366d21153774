"""What a study declares (its cells and their analysis), how studies are found, and the frame that an analysis gets.

`cells` names the runs and measurements that a study needs, each with labels of the study's own; `analyse` gets a frame
with one row per cell (see `frame_of`) and returns tables, figures and verdicts. A study does not train: runs are
addressed by the hash of their spec, so a run that six studies need is trained once. docs/add-a-study.md has an example.
"""

from __future__ import annotations

import base64
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

import numpy as np

from scala_lab.config import RunSpec
from scala_lab.errors import UserError, nearest
from scala_lab.methods.cost import forward_passes
from scala_lab.study.verdicts import Claim, ClaimRecord
from scala_lab.sweep.cells import Cell
from scala_lab.sweep.store import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from scala_lab.study.profiles import Profile
    from scala_lab.training.run_dir import RunResult
else:
    DataFrame = RunResult = Any  # only named in signatures: pandas would add half a second to `scala-lab study --list`


@dataclass(frozen=True)
class Tabulation:
    """A table for the report."""

    name: str  # suffix of the file's name, after the study's; '' for the study's main table
    frame: DataFrame  # its index, where it has names, becomes the first columns
    caption: str  # with the paper's number of the table, where it has one
    notes: Sequence[str] = ()  # below the table: budget, best rates that end their grid, what is projected


@dataclass(frozen=True)
class Drawing:
    """A figure for the report; `name` and `caption` as those of a `Tabulation`."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Findings:
    """What an analysis returns; tables and figures in the order of the page."""

    tables: Sequence[Tabulation] = ()
    figures: Sequence[Drawing] = ()
    claims: Sequence[ClaimRecord] = ()  # verdicts on claims of the paper, and on ours
    found: str = ""  # one to three sentences with the numbers of this run, printed beside what the paper found


@dataclass(frozen=True)
class Study:
    """A question, the runs that answer it, and their analysis.

    `analyse` is called only if at least one cell was run; rows of cells that were not run have status `missing`,
    failed ones `failed`, diverged ones `diverged`.
    """

    name: str  # as in `scala-lab study NAME`; also the prefix of its files' names
    title: str  # heading of its page
    question: str  # one sentence
    cells: Callable[[Profile], list[Cell]]  # the runs and measurements needed under a profile
    analyse: Callable[[Profile, DataFrame], Findings]  # turns the frame of the cells into findings
    source: str = ""  # figure or table of the paper; '' for a study beyond it
    paper_found: str = ""  # what the paper reports, in our words and its figures
    claims: Sequence[Claim] = ()  # the claims that it judges

    def __post_init__(self) -> None:
        for claim in self.claims:
            claim.source, claim.study = claim.source or self.source, claim.study or self.name


def main(study: Study, argv: Sequence[str] | None = None) -> int:
    """Carry out a study by the flags of `scala-lab study`, for the last lines of a study's file."""
    from scala_lab.cli import main as run_command

    return run_command(["study", reference_of(study), *(sys.argv[1:] if argv is None else argv)])


def declare(module: str, **about: Any) -> Study:
    """Return the study of a module: its functions `cells` and `analyse`, the claims in it, and other fields by name.

    A module that is run as a program carries it out: `python -m studies.sharpness` is `scala-lab study sharpness`.
    """
    members = vars(sys.modules[module])
    claims = tuple(value for value in members.values() if isinstance(value, Claim))
    name, functions = Path(members["__file__"]).stem, {key: members[key] for key in ("cells", "analyse")}
    study = Study(name, claims=claims, **functions, **about)
    if module == "__main__":
        raise SystemExit(main(study))
    return study


PACKAGE = "studies"
"""The package whose modules are studies; those with a leading underscore hold what several studies share."""


def study_names() -> list[str]:
    """Return the sorted names of all studies of the package without importing them."""
    package = importlib.import_module(PACKAGE)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def find_study(reference: str) -> Study:
    """Return the study of a name, or of the path of a user's own file that ends in .py."""
    if reference.endswith(".py"):
        return _study_of(_load_file(Path(reference)), reference)
    name = reference.replace("-", "_")
    names = study_names()
    if name not in names:
        raise UserError(f"unknown study {reference!r}: {nearest(name, names)} (a study of your own: its file, mine.py)")
    return _study_of(importlib.import_module(f"{PACKAGE}.{name}"), f"{PACKAGE}/{name}.py")


def reference_of(study: Study) -> str:
    """Return what `find_study` finds the study by, and a report stores: its module's name in `studies`, or its file."""
    module = sys.modules[study.cells.__module__]
    package, _, name = (module.__spec__.name if module.__spec__ is not None else module.__name__).rpartition(".")
    return name if package == PACKAGE else os.path.relpath(str(module.__file__))


def all_studies() -> dict[str, Study]:
    """Return every study of the package by name: figures and tables of the paper in order, then those beyond it."""
    studies = {name: find_study(name) for name in study_names()}
    return dict(sorted(studies.items(), key=lambda item: place_in_paper(item[1])))


def place_in_paper(study: Study) -> tuple[int, int, str, str]:
    """Return a sort key: figures by number, tables by number, other sources of the paper, then studies beyond it."""
    match = re.search(r"(Fig|Table)\w*\.?\s*(\d+)\s*(\(\w\))?", study.source)
    if match:
        return (0 if match[1] == "Fig" else 1, int(match[2]), match[3] or "", study.name)
    return (2 if study.source else 3, 0, "", study.name)


def _study_of(module: ModuleType, where: str) -> Study:
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise UserError(f"{where} has no STUDY = Study(...)")
    if not re.fullmatch(r"[A-Za-z0-9_]+", study.name):
        raise UserError(f"{where}: the study's name {study.name!r} is part of file names: letters, digits and _ only")
    return study


def _load_file(file: Path) -> ModuleType:
    """Import a user's file under its own name, which processes started from here can import too."""
    if not file.is_file():
        raise UserError(f"study file {file} does not exist")
    name, path = file.stem, file.resolve()
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin != str(path):
        taken = "is the name of another module" if spec is not None else "is no name that Python can import"
        raise UserError(f"study file {file}: {name!r} {taken}, rename the file")
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"study file {file} cannot be imported: {type(error).__name__}: {error}") from error


NUMBERS = (
    *("score", "dev", "f1", "best_score", "best_epoch", "steps", "workers", "train_seconds", "samples_per_second"),
    *("forward_passes", "divergence", "noise_start", "train_loss", "chance_loss", "chance_score", "rows"),
)
"""Columns of a run's row that are nan unless it finished."""


def frame_of(cells: Sequence[Cell], records: Records) -> DataFrame:
    """Return one row per cell: its labels, then what was measured. It is all that an analysis sees.

    Every row has `id` and `status` (finished, diverged, failed, running or missing). Rows of runs have `score` (the
    task's first metric in percent, nan unless finished, on `score_split`: held-out rows, else the first evaluation
    split, with `rows` rows), `dev` (that metric on the first evaluation split), `correct` (which of the `rows` are
    right, None if unknown), `train_loss` (at the end, without dropout and noise), `chance_loss` and `chance_score` (of
    a constant prediction), one column per metric (`dev_accuracy`, in percent), `f1` (on `score_split`, where
    the task has it), `best_score`, `best_epoch`, `rate` (the peak learning rate), `steps`, `workers`, `train_seconds`,
    `samples_per_second`, `forward_passes` (over the training rows, a backward counted as two), `divergence` (mean r
    over the last step), `divergences` (mean r of every step with noise, as pairs of step and value), `noise_start` (in
    epochs; nan for never) and `epochs` (the list of evaluations). Rows of measurements have the entries of their
    result. A label takes precedence over a measured column of the same name.
    """
    import pandas as pd

    rows = []
    for cell in cells:
        record = records.find(cell)
        status = "missing" if record is None else record["status"]
        if isinstance(cell.item, RunSpec):
            columns = _run_columns(record)
        else:
            columns = record["result"] if record is not None and status == "finished" else {}
        rows.append({**columns, "id": cell.key, "status": status, **cell.labels})
    frame = pd.DataFrame(rows)
    labels = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    return frame[[*labels, *(name for name in frame.columns if name not in labels)]]


def _run_columns(record: Mapping[str, Any] | None) -> dict[str, Any]:
    if record is None or record["status"] != "finished":
        rate = record.get("learning_rate", math.nan) if record else math.nan
        return {**dict.fromkeys(NUMBERS, math.nan), "rate": rate}
    metrics, timing = record["metrics"], record["timing"]
    percents = {f"{split}_{name}": 100 * value for split, values in metrics.items() for name, value in values.items()}
    first_split, first_metric = next((split, name) for split, values in metrics.items() for name in values)
    score_split = "heldout" if "heldout" in metrics else first_split
    best = record.get("best") or {"epoch": math.nan, "metrics": metrics}
    rows, packed = record["samples"][score_split], record.get("correct", {}).get(score_split)
    chance = record.get("chance", {})
    return {
        "score": percents[f"{score_split}_{first_metric}"],
        "score_split": score_split,
        "dev": percents[f"{first_split}_{first_metric}"],
        "rows": rows,
        "correct": packed and np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=rows),
        "train_loss": record.get("losses", {}).get("train", math.nan),
        "chance_loss": chance.get("loss", math.nan),
        "chance_score": 100 * chance.get("score", math.nan),
        **percents,
        "f1": percents.get(f"{score_split}_f1", math.nan),
        "best_score": 100 * best["metrics"][first_split][first_metric],
        "best_epoch": best["epoch"],
        "rate": record["learning_rate"],
        "steps": record["steps_done"],
        "workers": record["spec"]["machine"]["workers"],
        "train_seconds": timing["train_seconds"],
        "samples_per_second": timing["samples_per_second"],
        "forward_passes": forward_passes(record),
        "divergence": _nan_if_none(record["epochs"][-1].get("divergence") if record["epochs"] else None),
        "divergences": record.get("divergences", []),
        "noise_start": _nan_if_none(record.get("noise_start")),
        "epochs": record["epochs"],
    }


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value
