"""What was found, by id, as files hold it; and one row per cell of a study, which is all an analysis sees.

Tables and figures are drawn from these records alone, so a report can be rebuilt from its `runs.jsonl` and
`measurements.jsonl` on a machine that has none of the checkpoints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.errors import UserError
from scala_lab.files import strict, write_text
from scala_lab.runs.measurement import Measurement
from scala_lab.study.declaration import Cell

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.training.run_folder import RunResult

RUNS_FILE, MEASUREMENTS_FILE = "runs.jsonl", "measurements.jsonl"
KEPT = (
    "id",
    "name",
    "status",
    "error",
    "spec",
    "metrics",
    "best",
    "noise_start",
    "learning_rate",
    "steps",
    "steps_done",
    "samples",
    "parameters",
    "counts",
    "timing",
    "environment",
)
"""What of a run's record goes into `runs.jsonl`."""
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


@dataclass
class Records:
    """Runs and measurements by id.

    Attributes:
        runs: What `run_record` keeps of each run.
        measurements: `{id, name, function, settings, status, result, error}` of each.
    """

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    measurements: dict[str, dict[str, Any]] = field(default_factory=dict)

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """The record of a cell's run or measurement, or None if there is none."""
        if isinstance(cell.what, Measurement):
            return self.measurements.get(cell.what.id)
        return self.runs.get(cell.what.run_id)

    def write(self, folder: Path) -> None:
        """Write both files, in the order of ids, so that equal records are equal files."""
        for name, records in ((RUNS_FILE, self.runs), (MEASUREMENTS_FILE, self.measurements)):
            lines = [json.dumps(strict(records[key]), allow_nan=False) + "\n" for key in sorted(records)]
            write_text(folder / name, "".join(lines))

    @classmethod
    def read(cls, folder: Path) -> Records:
        """What `write` wrote."""
        return cls(*(_read_lines(folder / name) for name in (RUNS_FILE, MEASUREMENTS_FILE)))


def _read_lines(file: Path) -> dict[str, dict[str, Any]]:
    try:
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return {record["id"]: record for record in records}
    except FileNotFoundError:
        raise UserError(f"{file.parent} holds no report: {file.name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error})") from None


def run_record(result: RunResult) -> dict[str, Any]:
    """What a report keeps of a run: its record, and the evaluation after each epoch."""
    kept = {name: result.record[name] for name in KEPT if name in result.record}
    kept["epochs"] = _epochs(result.folder / "metrics.jsonl")
    return kept


def _epochs(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = ("epoch", "loss", "divergence")
    return [{**{name: line.get(name) for name in kept}, **line["eval"]} for line in lines if "eval" in line]


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
        rows.append(
            {**found, "id": cell.what.id if isinstance(cell.what, Measurement) else cell.what.run_id}
            | {"status": status}
            | dict(cell.labels)
        )
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


def forward_passes(record: Mapping[str, Any]) -> float:
    """A run's cost in forward passes over the training rows, a backward counted as two.

    A plain step costs 3 passes over its samples. A step with noise costs what its step function's card says.
    """
    from scala_lab.spec import RunSpec
    from scala_lab.study.budget import passes_per_sample

    spec = RunSpec.from_dict(record["spec"])
    rows = record["samples"]["train"]
    seen = rows * spec.optim.epochs if spec.optim.max_steps is None else record["steps_done"] * spec.batches.batch_size
    noised = record.get("counts", {}).get("noised_samples", 0) + record.get("counts", {}).get("skipped_noise", 0)
    plain, noisy = passes_per_sample(spec)
    return (plain * (seen - noised) + noisy * noised) / rows


def union(cells: Iterable[Cell]) -> list[Cell]:
    """The cells without repetition, by id, in their first order."""
    found: dict[str, Cell] = {}
    for cell in cells:
        key = cell.what.id if isinstance(cell.what, Measurement) else cell.what.run_id
        found.setdefault(key, cell)
    return list(found.values())
