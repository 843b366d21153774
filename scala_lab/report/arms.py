"""The report's own tables: did every arm train, and which trials chose its settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from scala_lab.report.chapter import Chapter
from scala_lab.report.tables import NOTHING
from scala_lab.study.api import Tabulation
from scala_lab.study.gates import FITTED, MIN_STEPS
from scala_lab.sweep.store import Records

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
