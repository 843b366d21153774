"""One row per cell of a study, which is all that its analysis sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scala_lab.runs.budget import forward_passes
from scala_lab.runs.cell import Cell
from scala_lab.runs.measurement import Measurement
from scala_lab.runs.records import Records

if TYPE_CHECKING:
    import pandas as pd

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
        found = _measured(record) if isinstance(cell.what, Measurement) else _trained(record)
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
