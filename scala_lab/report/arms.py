"""Tables of what was trained: each arm with its rate, steps, losses and scores, and the trials that tuned it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.report.tables import NOTHING
from scala_lab.study.api import Tabulation
from scala_lab.study.gates import FITTED, MIN_STEPS

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.config import RunSpec
    from scala_lab.report.chapter import Chapter
    from scala_lab.study.tuning import Choice
    from scala_lab.sweep.store import Records

ARM = ["model", "task", "batch size", "method", "rate", "in grid", "steps"]


def arms_table(chapters: Sequence[Chapter], records: Records) -> Tabulation:
    """Return a row per model, task, batch size and method, from all studies: whether its models trained, and how.

    A run that several studies share is counted once, under the first one's name for its method. Trials are left out.
    """
    import pandas as pd

    seen = {trial for chapter in chapters if chapter.choices for trial in chapter.choices.trials}
    rows = []
    for chapter in chapters:
        for labels in chapter.frame.to_dict("records") if chapter.frame is not None else ():
            record = records.runs.get(labels["id"])
            if record is not None and labels["id"] not in seen:
                seen.add(labels["id"])
                rows.append(_run_row(labels, record))
    frame = pd.DataFrame(rows, columns=[*ARM, "finished", "loss", "held-out", "dev"])
    table = frame.groupby(ARM, sort=False, dropna=False).apply(_arm_means, include_groups=False)
    return Tabulation(
        "",
        table.reset_index().sort_values(ARM[:3], kind="stable"),
        "Arms: rates, steps, training losses and scores of everything that was compared.",
        [
            "Training loss over chance: loss on training rows at the end, without dropout and noise, as a share of "
            f"that of a constant prediction; claims on accuracy ask every run for at most {FITTED:g}, and for "
            f"{MIN_STEPS} steps. Rates were chosen on tuning rows; held-out rows have seen no choice."
        ],
    )


def _run_row(labels: Mapping[Any, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    spec, metrics = record["spec"], record.get("metrics") or {}
    method, interior = labels.get("method"), labels.get("interior")
    scores = {split: 100 * next(iter(values.values())) for split, values in metrics.items() if values}
    losses, chance = record.get("losses") or {}, record.get("chance") or {}
    return {
        "model": Path(spec["encoder"]["model"]).name,
        "task": Path(spec["data"]["task"]).name,
        "batch size": spec["batches"]["batch_size"],
        "method": method if isinstance(method, str) else spec["recipe"]["method"],
        "rate": f"{record['learning_rate']:g}" if "learning_rate" in record else NOTHING,
        "in grid": _place(bool(interior)) if interior is not None and interior == interior else NOTHING,
        "steps": record.get("steps", math.nan),
        "finished": record["status"] == "finished",
        "loss": losses.get("train", math.nan) / chance.get("loss", math.nan),
        "held-out": scores.get("heldout", math.nan),
        "dev": next((score for split, score in scores.items() if split.startswith("dev")), math.nan),
    }


def _arm_means(runs: pd.DataFrame) -> pd.Series:
    import pandas as pd

    means: dict[str, Any] = {
        "seeds": int(runs["finished"].sum()),
        "not finished": int((~runs["finished"]).sum()),
        "training loss / chance": runs["loss"].mean(),
        "worst seed's": runs["loss"].max(),
        "held-out score": runs["held-out"].mean(),
        "dev score": runs["dev"].mean(),
    }
    return pd.Series(means, dtype=object)


def tuning_table(chapters: Sequence[Chapter]) -> Tabulation:
    """Return a row per tuned setting: the value chosen, and the score of each trial on the tuning rows."""
    import pandas as pd

    made: dict[tuple[RunSpec, str], Choice] = {}
    for chapter in chapters:
        made |= chapter.choices.made if chapter.choices else {}
    rows = [
        {
            "model": Path(spec.encoder.model).name,
            "task": Path(spec.data.task).name,
            "batch size": spec.batches.batch_size,
            "method": spec.recipe.method,
            "optimizer": spec.resolved().optim.optimizer,
            "setting": setting,
            "chosen": f"{choice.value:g}",
            "in grid": _place(choice.interior) if len(choice.scores) > 2 else NOTHING,
            "trials": len(choice.scores),
            "scores by value": "; ".join(
                f"{value:g}: {f'{score:.2f}' if math.isfinite(score) else 'diverged'}"
                for value, score in sorted(choice.scores.items())
            ),
        }
        for (spec, setting), choice in made.items()
    ]
    note = "Scores in percent on tuning rows, which are cut from the training rows and used for nothing else."
    frame = pd.DataFrame(rows)
    ordered = frame.sort_values(["model", "task", "batch size"], kind="stable") if rows else frame
    return Tabulation("", ordered, "Tuned settings and their trials.", [note])


def _place(interior: bool) -> str:
    return "inside" if interior else "at its end"
