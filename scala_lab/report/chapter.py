"""One study of a report: its findings, drawn and written out, or the sentence that says why there are none.

A study's own code runs only here, so that a study that fails does not affect the others. `report.json`, the manifest,
says what a report is of, so that it can be rebuilt from its own folder. Tables of arms and trials are of all studies.
"""

from __future__ import annotations

import json
import math
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.report.figures.style import figure_files
from scala_lab.report.tables import NOTHING, Column, columns_of, csv_text, latex_text, markdown_text
from scala_lab.study.api import DataFrame, Drawing, Study, Tabulation, find_study, frame_of
from scala_lab.study.gates import FITTED, MIN_STEPS
from scala_lab.study.profiles import Profile, find_profile
from scala_lab.study.tuning import Choices
from scala_lab.study.verdicts import ClaimRecord
from scala_lab.sweep.store import Records, unique_items

MANIFEST_FILE = "report.json"
OWN_PIECES = ("arms", "claims", "tuning")
"""First words of the names of the report's own figures and tables, which no study may have."""


@dataclass(frozen=True)
class Manifest:
    """The profile, inputs and studies of a report."""

    profile: str
    data_dir: str | None = None  # as given on the command line
    model: str | None = None  # as given on the command line
    model_is_folder: bool = False  # whether it was one when the runs were trained
    device: str = "cpu"  # what `auto` resolved to when the runs were trained, part of their ids
    seeds: tuple[int, ...] = ()  # in place of the profile's, if given
    tasks: tuple[str, ...] = ()  # in place of the profile's, if given
    studies: tuple[str, ...] = ()  # references of the studies (see `find_study`), in the order of the page
    command: str = ""  # the last that added to the report

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a folder; None if it has none."""
        file = folder / MANIFEST_FILE
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
            return cls(**{**values, **lists})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is damaged or was written by another version ({error})") from None

    def write(self, folder: Path) -> None:
        """Write `report.json`."""
        write_json(folder / MANIFEST_FILE, asdict(self))

    def load_profile(self) -> Profile:
        """Load the profile with the data, model and device of the report.

        An encoder whose folder is absent here is replaced by the folder's name, as in run ids, which so stay the same.
        """
        model = self.model
        if model is not None and self.model_is_folder and not Path(model).expanduser().is_dir():
            model = Path(model).name
        profile = find_profile(self.profile).with_data(Path(self.data_dir) if self.data_dir else None, model)
        profile = profile.restricted(self.seeds, self.tasks)
        return replace(profile, settings={"device": self.device, **profile.settings})


@dataclass(frozen=True)
class Piece:
    """A figure or a table as files: their stem, contents by ending, and for a table its columns as shown."""

    stem: str
    caption: str
    files: Mapping[str, bytes]
    columns: Sequence[Column] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Chapter:
    """What a report holds of a study; figures and tables in the order of the page."""

    reference: str  # what `find_study` finds it by
    study: Study | None = None  # None if it could not be found
    ids: frozenset[str] = frozenset()  # of the runs and measurements that it needs
    statuses: Mapping[str, int] = field(default_factory=dict)  # number of cells by status
    figures: Sequence[Piece] = ()
    tables: Sequence[Piece] = ()
    claims: Sequence[ClaimRecord] = ()
    found: str = ""  # the study's sentences on what was found
    failure: str = ""  # why there are no findings; '' where there are
    frame: DataFrame | None = field(default=None, compare=False, repr=False)  # of its cells
    choices: Choices | None = field(default=None, compare=False, repr=False)  # of its tuned settings

    @property
    def name(self) -> str:
        """The study's name."""
        return self.study.name if self.study is not None else Path(self.reference).stem

    @property
    def ran(self) -> bool:
        """Whether any of its cells has a record."""
        return any(count for status, count in self.statuses.items() if status != "missing")


def read_chapter(reference: str, profile: Profile, records: Records) -> Chapter:
    """Analyse a study on the records there are, and render its figures and tables."""
    chapter = Chapter(reference)
    try:
        study = find_study(reference)
        chapter = Chapter(reference, study)
        choices = Choices(lambda spec: records.runs.get(spec.run_id))
        profile = profile.with_choices(choices)
        cells = study.cells(profile)
        if not cells:
            return chapter
        frame = frame_of(cells, records)
        statuses = frame.drop_duplicates("id")["status"].value_counts().to_dict()
        ids = frozenset({*unique_items(cells), *choices.trials})
        chapter = replace(chapter, ids=ids, statuses=statuses, frame=frame, choices=choices)
        if not chapter.ran:
            return chapter
        findings = study.analyse(profile, frame)
        drawn = zip(_stems(study.name, findings.figures), findings.figures, strict=True)
        figures = [Piece(stem, one.caption, figure_files(one.figure, profile.demonstration)) for stem, one in drawn]
        tabulated = zip(_stems(study.name, findings.tables), findings.tables, strict=True)
        tables = [table_piece(stem, table) for stem, table in tabulated]
        return replace(chapter, figures=figures, tables=tables, claims=tuple(findings.claims), found=findings.found)
    except Exception as error:  # noqa: BLE001 - a failing study must not affect the others
        return replace(chapter, failure=describe_failure(error))


def describe_failure(error: Exception) -> str:
    """Return one sentence: the error and, unless it is a UserError, the innermost line outside of libraries."""
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or list(frames)
    line = f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}"
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({line})"


def table_piece(stem: str, table: Tabulation) -> Piece:
    """Write a table in all formats."""
    texts = {".csv": csv_text(table), ".md": markdown_text(table), ".tex": latex_text(table, stem)}
    files = {ending: text.encode() for ending, text in texts.items()}
    return Piece(stem, table.caption, files, columns_of(table), tuple(table.notes))


def _stems(study: str, parts: Sequence[Tabulation] | Sequence[Drawing]) -> list[str]:
    """Return the stems of the files of a study's tables or figures, if they are names of files and differ."""
    if study in OWN_PIECES:
        raise UserError(f"study {study}: the report has figures and tables of that name, choose another")
    for name, count in Counter(part.name for part in parts).items():
        if count > 1:
            raise UserError(f"study {study} has {count} {type(parts[0]).__name__}s named {name!r}")
        if not all(character.isalnum() or character in "_-" for character in name):
            raise UserError(f"study {study}: {name!r} is part of a file name: letters, digits, - and _ only")
    return [f"{study}-{part.name}" if part.name else study for part in parts]


ARM = ["model", "task", "batch size", "method", "rate", "in grid", "steps"]
ARM_NOTE = (
    "Training loss: on training rows at the end, without dropout and noise, as a share of a constant prediction's; "
    f"claims on accuracy ask every run for at most {FITTED:g}, and for {MIN_STEPS} steps. Rates were chosen on tuning "
    "rows; held-out rows have seen no choice."
)
PLACES: dict[Any, str] = {True: "inside", False: "at its end"}


def arms_table(chapters: Sequence[Chapter], records: Records) -> Tabulation:
    """Return a row per model, task, batch size and method, from all studies: whether its models trained, and how.

    A run that several studies share is counted once, under the first one's name for its method. Trials are left out.
    """
    seen = {trial for chapter in chapters if chapter.choices for trial in chapter.choices.trials}
    rows = []
    for chapter in chapters:
        for row in chapter.frame.to_dict("records") if chapter.frame is not None else ():
            if row["id"] in records.runs and row["id"] not in seen:
                seen.add(row["id"])
                rows.append(_run_row(row, records.runs[row["id"]]))
    frame = pd.DataFrame(rows, columns=[*ARM, "finished", "lost", "loss", "held-out", "dev"])
    columns = {"seeds": ("finished", "sum"), "not finished": ("lost", "sum")}
    columns |= {"training loss / chance": ("loss", "mean"), "worst seed's": ("loss", "max")}
    columns |= {"held-out score": ("held-out", "mean"), "dev score": ("dev", "mean")}
    table = frame.groupby(ARM, sort=False, dropna=False).agg(**columns).reset_index()
    caption = "Arms: rates, steps, training losses and scores of everything that was compared."
    return Tabulation("", table.sort_values(ARM[:3], kind="stable"), caption, [ARM_NOTE])


def _run_row(row: Mapping[Any, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    spec, finished = record["spec"], record["status"] == "finished"
    return {
        "model": Path(spec["encoder"]["model"]).name,
        "task": Path(spec["data"]["task"]).name,
        "batch size": spec["batches"]["batch_size"],
        "method": row["method"] if isinstance(row.get("method"), str) else spec["recipe"]["method"],
        "rate": f"{record['learning_rate']:g}" if "learning_rate" in record else NOTHING,
        "in grid": PLACES.get(row.get("interior"), NOTHING),
        "steps": record.get("steps", math.nan),
        "finished": finished,
        "lost": not finished,
        "loss": row["train_loss"] / row["chance_loss"],
        "held-out": row["score"] if row.get("score_split") == "heldout" else math.nan,
        "dev": row["dev"],
    }


def tuning_table(chapters: Sequence[Chapter]) -> Tabulation:
    """Return a row per tuned setting: the value chosen, and the score of each trial on the tuning rows."""
    made = {key: choice for chapter in chapters if chapter.choices for key, choice in chapter.choices.made.items()}
    rows = [
        {
            "model": Path(spec.encoder.model).name,
            "task": Path(spec.data.task).name,
            "batch size": spec.batches.batch_size,
            "method": spec.recipe.method,
            "optimizer": spec.resolved().optim.optimizer,
            "setting": setting,
            "chosen": f"{choice.value:g}",
            "in grid": PLACES[choice.interior] if len(choice.scores) > 2 else NOTHING,
            "trials": len(choice.scores),
            "scores by value": "; ".join(f"{value:g}: {score:.2f}" for value, score in sorted(choice.scores.items())),
        }
        for (spec, setting), choice in made.items()
    ]
    frame = pd.DataFrame(sorted(rows, key=lambda row: (row["model"], row["task"], row["batch size"])))
    note = "Scores in percent on tuning rows, cut from the training rows and used for nothing else; -inf: no score."
    return Tabulation("", frame, "Tuned settings and their trials.", [note])
