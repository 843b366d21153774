"""Where runs and measurements are kept, by the hash of what determines them.

`<root>/runs/<name>/` is an ordinary run folder, `<root>/measurements/<id>.json` a measurement's record, and
`<root>/claims/` holds a file for everything that is being worked on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.runs.claim import claimed, is_claimed, on_this_host
from scala_lab.runs.measurement import Measurement
from scala_lab.spec import RunSpec

if TYPE_CHECKING:
    from scala_lab.runs.cell import Cell
    from scala_lab.runs.records import Records
    from scala_lab.training.run_folder import RunResult

What = RunSpec | Measurement
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
        from scala_lab.training.run_folder import read_run

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

    def status(self, what: What) -> str:
        """missing, running (also when interrupted), finished, diverged or failed."""
        if isinstance(what, Measurement):
            record = self.measurement(what)
            return "missing" if record is None else record["status"]
        run = self.run(what)
        return "missing" if run is None else run.status

    def seconds(self, what: What) -> float | None:
        """How long something took, or None if its record does not say."""
        if isinstance(what, Measurement):
            record = self.measurement(what)
            return None if record is None else record.get("seconds")
        run = self.run(what)
        timing = run.record.get("timing") if run is not None else None
        return None if timing is None else timing["train_seconds"] + timing["evaluation_seconds"]

    def by_status(self, cells: Iterable[Cell]) -> dict[str, list[What]]:
        """What the cells are about and the runs they need, each once, by status."""
        found: dict[str, list[What]] = {}
        for what in everything(cells).values():
            found.setdefault(self.status(what), []).append(what)
        return found

    def records(self, cells: Iterable[Cell]) -> Records:
        """What is there of the cells and of the runs they need."""
        from scala_lab.runs.records import Records, run_record

        records = Records()
        for key, what in everything(cells).items():
            if isinstance(what, Measurement):
                record = self.measurement(what)
                if record is not None:
                    records.measurements[key] = record
            else:
                run = self.run(what)
                if run is not None:
                    records.runs[key] = run_record(run)
        return records

    def claim(self, what: What) -> AbstractContextManager[bool]:
        """Hold a run or a measurement for a block, which learns whether it may work on it."""
        return claimed(self._claim_file(what))

    def is_claimed(self, what: What) -> bool:
        """Whether some process is working on it."""
        return is_claimed(self._claim_file(what))

    def clear_claim(self, what: What) -> None:
        """Remove the file of a claim that nobody holds: one whose process was killed between its last two acts."""
        self.is_claimed(what)

    def quiet(self, what: What) -> AbstractContextManager[None]:
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
            "function": measurement.function,
            "settings": dict(measurement.settings),
            "of": [spec.run_id for spec in measurement.of],
            "status": "failed" if result is None else "finished",
            "result": result or {},
            "error": error,
            "seconds": seconds,
        }
        write_json(self.measurement_file(measurement), {**record, "traceback": trace} if trace else record)

    def record_failure(self, what: What, error: str, trace: str | None = None) -> None:
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

    def forget_failure(self, what: What) -> None:
        """Make room to try again what failed; what a run has saved to go on from is kept."""
        if isinstance(what, Measurement):
            self.measurement_file(what).unlink(missing_ok=True)
            return
        run = self.run(what)
        if run is not None and not run.record["fingerprints"]:  # it failed before its inputs were known
            (run.folder / "run.json").unlink()

    def _claim_file(self, what: What) -> Path:
        return self.root / "claims" / key_of(what)


def key_of(what: What) -> str:
    """The id of a run or a measurement."""
    return what.id if isinstance(what, Measurement) else what.run_id


def everything(cells: Iterable[Cell]) -> dict[str, What]:
    """What the cells are about and the runs they need, by id, each once: runs before the measurements of them."""
    found: dict[str, What] = {}
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
