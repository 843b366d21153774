"""Where runs and measurements are kept, by the hash of what determines them, and the records of what was found.

What was found, by id, as files hold it.

Tables and figures are drawn from these records alone, so a report can be rebuilt from its `runs.jsonl` and
`measurements.jsonl` on a machine that has none of the checkpoints.

Where runs and measurements are kept, by the hash of what determines them.

`<root>/runs/<name>/` is an ordinary run folder, `<root>/measurements/<id>.json` a measurement's record, and
`<root>/claims/` holds a file for everything that is being worked on.

Whether runs that are there already were on the data and the model that their names stand for now.

A run's id covers the names of its task and model, not where they lie or what is in them. A run that is trained or
resumed compares contents by itself; this is for runs that a sweep would only read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import DataSpec, RunSpec
from scala_lab.errors import UserError
from scala_lab.files import nan_to_null, write_json, write_text
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.lock import is_locked, locked, on_this_host

if TYPE_CHECKING:
    from scala_lab.sweep.cells import Cell
    from scala_lab.training.run_dir import RunResult


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
            lines = [json.dumps(nan_to_null(records[key]), allow_nan=False) + "\n" for key in sorted(records)]
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


WorkItem = RunSpec | Measurement
"""What a cell is about."""

ENDED = ("finished", "diverged", "failed")
"""Statuses of what needs no more work."""


class RunStore:
    """Runs and measurements in a folder.

    Args:
        root: Made when something is first put there.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def run_folder(self, spec: RunSpec) -> Path:
        """Where the run of a spec is, or will be."""
        return self.root / "runs" / spec.name

    def measurement_file(self, measurement: Measurement) -> Path:
        """Where a measurement's record is, or will be."""
        return self.root / "measurements" / f"{measurement.id}.json"

    def run(self, spec: RunSpec) -> RunResult | None:
        """The run of a spec, in whatever state it is, or None."""
        from scala_lab.training.run_dir import read_run

        return read_run(self.run_folder(spec))

    def measurement(self, measurement: Measurement) -> dict[str, Any] | None:
        """The record of a measurement, or None."""
        file = self.measurement_file(measurement)
        try:
            record = json.loads(file.read_bytes())
            if not {"id", "status", "result"} <= set(record):
                raise ValueError("it lacks id, status or result")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged ({error}): delete it to measure again") from None
        return record

    def status(self, what: WorkItem) -> str:
        """missing, running (also when interrupted), finished, diverged or failed."""
        if isinstance(what, Measurement):
            record = self.measurement(what)
            return "missing" if record is None else record["status"]
        run = self.run(what)
        return "missing" if run is None else run.status

    def seconds(self, what: WorkItem) -> float | None:
        """How long something took, or None if its record does not say."""
        if isinstance(what, Measurement):
            record = self.measurement(what)
            return None if record is None else record.get("seconds")
        run = self.run(what)
        timing = run.record.get("timing") if run is not None else None
        return None if timing is None else timing["train_seconds"] + timing["evaluation_seconds"]

    def by_status(self, cells: Iterable[Cell]) -> dict[str, list[WorkItem]]:
        """What the cells are about and the runs they need, each once, by status."""
        found: dict[str, list[WorkItem]] = {}
        for what in unique_items(cells).values():
            found.setdefault(self.status(what), []).append(what)
        return found

    def records(self, cells: Iterable[Cell]) -> Records:
        """What is there of the cells and of the runs they need."""
        records = Records()
        for key, what in unique_items(cells).items():
            if isinstance(what, Measurement):
                record = self.measurement(what)
                if record is not None:
                    records.measurements[key] = record
            else:
                run = self.run(what)
                if run is not None:
                    records.runs[key] = run_record(run)
        return records

    def claim(self, what: WorkItem) -> AbstractContextManager[bool]:
        """Hold a run or a measurement for a block, which learns whether it may work on it."""
        return locked(self._lock_file(what))

    def is_locked(self, what: WorkItem) -> bool:
        """Whether some process is working on it."""
        return is_locked(self._lock_file(what))

    def remove_stale_lock(self, what: WorkItem) -> None:
        """Remove the file of a claim that nobody holds: one whose process was killed between its last two acts."""
        self.is_locked(what)

    def quiet(self, what: WorkItem) -> AbstractContextManager[None]:
        """For a block: nothing else of this store runs on this host beside a measurement that is to be alone."""
        return on_this_host(self.root / "claims" / "busy", isinstance(what, Measurement) and what.alone)

    def record_measurement(
        self,
        measurement: Measurement,
        *,
        result: dict[str, Any] | None = None,
        error: str | None = None,
        trace: str | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Write what a measurement came to."""
        record = {
            "id": measurement.id,
            "name": measurement.name,
            "function": measurement.path,
            "settings": dict(measurement.settings),
            "of": [spec.run_id for spec in measurement.of],
            "status": "failed" if result is None else "finished",
            "result": result or {},
            "error": error,
            "seconds": seconds,
        }
        write_json(self.measurement_file(measurement), {**record, "traceback": trace} if trace else record)

    def record_failure(self, what: WorkItem, error: str, trace: str | None = None) -> None:
        """Note that a run or measurement could not be had, and why."""
        if isinstance(what, Measurement):
            self.record_measurement(what, error=error, trace=trace)
            return
        run, spec = self.run(what), what.resolved()
        record = {
            "id": spec.run_id,
            "name": spec.name,
            "spec": spec.to_dict(),
            "fingerprints": {},
            "metrics": {},
            "steps": 0,
            "steps_done": 0,
            "skipped_rows": {},
            **(run.record if run is not None else {}),
        }
        failure = {"status": "failed", "error": error, **({"traceback": trace} if trace else {})}
        write_json(self.run_folder(what) / "run.json", {**record, **failure})

    def forget_failure(self, what: WorkItem) -> None:
        """Make room to try again what failed; what a run has saved to go on from is kept."""
        if isinstance(what, Measurement):
            self.measurement_file(what).unlink(missing_ok=True)
            return
        run = self.run(what)
        if run is not None and not run.record["fingerprints"]:  # it failed before its inputs were known
            (run.folder / "run.json").unlink()

    def _lock_file(self, what: WorkItem) -> Path:
        return self.root / "claims" / key_of(what)


def key_of(what: WorkItem) -> str:
    """The id of a run or a measurement."""
    return what.id if isinstance(what, Measurement) else what.run_id


def unique_items(cells: Iterable[Cell]) -> dict[str, WorkItem]:
    """What the cells are about and the runs they need, by id, each once: runs before the measurements of them."""
    found: dict[str, WorkItem] = {}
    for cell in cells:
        for what in (*cell.specs, cell.what):
            found.setdefault(key_of(what), what)
    return found


def check_root(root: Path) -> None:
    """Refuse a store that cannot be written to, before any work is done for it."""
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UserError(f"{place} is a file: a store of runs is a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"the store {root} cannot be written to: {place} is read-only")


def check_same_inputs(store: RunStore, whats: Iterable[WorkItem]) -> None:
    """Refuse a store with runs of these specs on other data or another model than those at hand.

    What is not at hand cannot be compared: reports can be drawn without the data.
    """
    fingerprints = {"data": cache(_data_fingerprint), "model": cache(_model_fingerprint)}
    for spec in (what for what in whats if isinstance(what, RunSpec)):
        run = store.run(spec)
        rows = replace(spec.data, train_samples=None, eval_samples=None, heldout_samples=0, data_seed=0)
        for name, key in (("data", rows), ("model", spec.encoder.model)):
            now, then = fingerprints[name](key), run.record["fingerprints"].get(name) if run is not None else None
            if None not in (now, then) and now != then:
                raise UserError(f"{store.run_folder(spec)} holds this run on another {name}: use a new store")


def _data_fingerprint(data: DataSpec) -> str | None:
    from scala_lab.data.sources import load_task
    from scala_lab.data.tokens import data_fingerprint

    try:
        return data_fingerprint(load_task(data))
    except UserError:
        return None


def _model_fingerprint(model: str) -> str | None:
    from scala_lab.models.loading import locate_model, model_fingerprint

    try:
        return model_fingerprint(locate_model(model))
    except UserError:
        return None
