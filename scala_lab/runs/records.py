"""What was found, by id, as files hold it.

Tables and figures are drawn from these records alone, so a report can be rebuilt from its `runs.jsonl` and
`measurements.jsonl` on a machine that has none of the checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.errors import UserError
from scala_lab.files import strict, write_text
from scala_lab.runs.cell import Cell
from scala_lab.runs.measurement import Measurement

if TYPE_CHECKING:
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
    """What a report keeps of a run: its record, and the evaluation after each epoch.

    The command line is left out: the spec says what was run, and a report is to be passed on without anyone's paths.
    """
    kept = {name: result.record[name] for name in KEPT if name in result.record}
    if "environment" in kept:
        kept["environment"] = {name: value for name, value in kept["environment"].items() if name != "command"}
    kept["epochs"] = _epochs(result.folder / "metrics.jsonl")
    return kept


def _epochs(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = ("epoch", "loss", "divergence")
    return [{**{name: line.get(name) for name in kept}, **line["eval"]} for line in lines if "eval" in line]
