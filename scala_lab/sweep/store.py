"""The run store: runs and measurements in a folder, each under the hash of what determines it.

`<root>/runs/<name>/` is an ordinary run folder, `<root>/measurements/<id>.json` the record of a measurement, and
`<root>/locks/<id>` exists while a process works on that run or measurement. Tables and figures are drawn from
`Records` alone, so a report can be rebuilt from its `runs.jsonl` and `measurements.jsonl` without any checkpoint.

A lock is an flock, which the system releases with the process: kill -9 leaves no stale lock on one host. Not every
file system carries flocks between hosts, so the file also names its holder and is touched while the lock is held:
the lock of another host counts until its file has not been touched for `STALE_SECONDS`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scala_lab.config import DataSpec, RunSpec
from scala_lab.data.sources import all_rows
from scala_lab.errors import UserError
from scala_lab.files import nan_to_null, write_json, write_text
from scala_lab.sweep.cells import Cell, Measurement, WorkItem, key_of, runs_alone

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

RUNS_FILE, MEASUREMENTS_FILE = "runs.jsonl", "measurements.jsonl"
RUN_FIELDS = (
    *("id", "name", "status", "error", "spec", "fingerprints", "metrics", "best", "noise_start", "learning_rate"),
    *("trunk", "losses", "chance", "steps", "steps_done", "samples", "parameters", "counts", "timing", "environment"),
)
"""Entries of a run's record that go into `runs.jsonl`."""

ENDED = ("finished", "diverged", "failed")  # statuses that a sweep leaves as they are, `failed` unless it retries

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0  # how long the lock of another host outlives its last heartbeat


@dataclass
class Records:
    """Each run's `run_record` and each measurement's `{id, name, function, settings, status, result, error}` by id."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    measurements: dict[str, dict[str, Any]] = field(default_factory=dict)

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """Return the record of a cell's run or measurement, or None if there is none."""
        return (self.measurements if isinstance(cell.item, Measurement) else self.runs).get(cell.key)

    def write(self, folder: Path) -> None:
        """Write both files in the order of ids, so that equal records are equal files."""
        for name, records in ((RUNS_FILE, self.runs), (MEASUREMENTS_FILE, self.measurements)):
            lines = [json.dumps(nan_to_null(records[key]), allow_nan=False) + "\n" for key in sorted(records)]
            write_text(folder / name, "".join(lines))

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Read what `write` wrote."""
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
    """Return what a report keeps of a run: parts of its record, evaluations after epochs, mean r by step, right rows.

    The latter are one bit a row in base64, by split, without the rows that settings are chosen or fitted on. The
    command line is left out: the spec says what was run, and a published report should show nobody's paths.
    """
    from scala_lab.training.run_dir import packed_correct

    record = {name: result.record[name] for name in RUN_FIELDS if name in result.record}
    if "environment" in record:
        record["environment"] = {name: value for name, value in record["environment"].items() if name != "command"}
    log = result.folder / "metrics.jsonl"
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    columns = ("epoch", "loss", "divergence")
    record["epochs"] = [{name: step.get(name) for name in columns} | step["eval"] for step in steps if "eval" in step]
    noised = [(step["step"], step["divergence"]) for step in steps if step.get("divergence") is not None]
    record["divergences"] = [[step, float(f"{value:.4g}")] for step, value in noised]
    packed = {split: bits for split, bits in packed_correct(result.folder).items() if split not in ("train", "tuning")}
    record["correct"] = {split: base64.b64encode(bits).decode() for split, bits in packed.items()}
    return record


class RunStore:
    """Runs and measurements in a folder, which is created when something is first written to it.

    `known` are records that were made in another store, such as those of a report: what ended there counts as done,
    although no trained model of it is here (see `has_model`).
    """

    def __init__(self, root: Path | str, known: Records | None = None) -> None:
        self.root, self.known = Path(root), known or Records()

    def run_folder(self, spec: RunSpec) -> Path:
        """The folder of a spec's run, whether it exists yet or not."""
        return self.root / "runs" / spec.name

    def record_file(self, item: WorkItem) -> Path:
        """The file of a run's or a measurement's record, whether it exists yet or not."""
        if isinstance(item, Measurement):
            return self.root / "measurements" / f"{item.id}.json"
        return self.run_folder(item) / "run.json"

    def run(self, spec: RunSpec) -> RunResult | None:
        """Read the run of a spec, whatever its status, or None."""
        from scala_lab.training.run_dir import read_run

        return read_run(self.run_folder(spec))

    def has_model(self, spec: RunSpec) -> bool:
        """Whether the trained model of a spec is in this store, so that it can be measured."""
        run = self.run(spec)
        return run is not None and run.status == "finished"

    def record(self, item: WorkItem) -> dict[str, Any] | None:
        """Read the record of a run or a measurement, or None: that of this store, unless only the known one ended."""
        own, known = self._own_record(item), self.known.find(Cell(item))
        return known if known is not None and (own is None or own["status"] not in ENDED) else own

    def _own_record(self, item: WorkItem) -> dict[str, Any] | None:
        if isinstance(item, RunSpec):
            run = self.run(item)
            return None if run is None else run.record
        file = self.record_file(item)
        try:
            record = json.loads(file.read_bytes())
            if not {"id", "status", "result"} <= set(record):
                raise ValueError("it lacks id, status or result")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged ({error}): delete it to measure again") from None
        return record

    def status(self, item: WorkItem) -> str:
        """Return missing, running (also when interrupted), finished, diverged or failed."""
        record = self.record(item)
        return "missing" if record is None else record["status"]

    def seconds(self, item: WorkItem) -> float | None:
        """Return how long a run or a measurement took, or None if it did not finish or its record does not say."""
        record = self.record(item)
        if record is None or record["status"] != "finished":
            return None
        timing = record.get("timing")
        return record.get("seconds") if timing is None else timing["train_seconds"] + timing["evaluation_seconds"]

    def by_status(self, cells: Iterable[Cell]) -> dict[str, list[WorkItem]]:
        """Group the items of the cells and the runs they need, each once, by status."""
        groups: dict[str, list[WorkItem]] = {}
        for item in unique_items(cells).values():
            groups.setdefault(self.status(item), []).append(item)
        return groups

    def records(self, cells: Iterable[Cell]) -> Records:
        """Read what exists of the cells and of the runs they need."""
        records = Records()
        for key, item in unique_items(cells).items():
            record = self.record(item)
            if isinstance(item, Measurement):
                if record is not None:
                    records.measurements[key] = record
            elif record is not None and record is self.known.runs.get(key):
                records.runs[key] = record
            elif (run := self.run(item)) is not None:
                records.runs[key] = run_record(run)
        return records

    def lock(self, item: WorkItem) -> AbstractContextManager[bool]:
        """Try to lock a run or a measurement for a block; yields whether it was free."""
        return locked(self.root / "locks" / key_of(item))

    def remove_stale_lock(self, item: WorkItem) -> bool:
        """Remove the lock file that a killed process left behind; return whether the item is unlocked now."""
        if not (self.root / "locks" / key_of(item)).exists():
            return True
        with self.lock(item) as acquired:
            return acquired

    @contextmanager
    def share_host(self, item: WorkItem) -> Iterator[None]:
        """For a block, keep all other work of this store off this host if the item is to run alone, else share it."""
        file = self.root / "locks" / f"busy-{platform.node()}"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX if runs_alone(item) else fcntl.LOCK_SH)
            yield

    def record_measurement(self, measurement: Measurement, result: dict[str, Any] | None, **more: Any) -> None:
        """Record a measurement, which failed if it has no result; `more` are error, seconds and traceback."""
        record: dict[str, Any] = {"id": measurement.id, "name": measurement.name, "function": measurement.path}
        record |= {"settings": dict(measurement.settings), "of": [spec.run_id for spec in measurement.of]}
        record |= {"status": "failed" if result is None else "finished", "result": result or {}}
        write_json(self.record_file(measurement), {**record, "error": None, "seconds": 0.0, **more})

    def record_failure(self, item: WorkItem, error: str, trace: str = "", seconds: float = 0.0) -> None:
        """Record that a run or a measurement failed, and why."""
        why = {"error": error, "traceback": trace} if trace else {"error": error}
        if isinstance(item, Measurement):
            self.record_measurement(item, None, seconds=seconds, **why)
            return
        spec = item.resolved()
        record = self.record(item) or {
            **{"id": spec.run_id, "name": spec.name, "spec": spec.to_dict(), "fingerprints": {}, "metrics": {}},
            **{"steps": 0, "steps_done": 0, "skipped_rows": {}},
        }
        write_json(self.record_file(item), {**record, "status": "failed", **why})

    def forget_failure(self, item: WorkItem) -> None:
        """Delete the record of what failed, so that it is tried again; a run's saved state stays."""
        record = self.record(item) or {}
        if not record.get("fingerprints"):  # a measurement, or a run that failed before its inputs were known
            self.record_file(item).unlink(missing_ok=True)


def unique_items(cells: Iterable[Cell]) -> dict[str, WorkItem]:
    """Return the items of the cells and the runs they need by id, each once, runs before measurements of them."""
    items: dict[str, WorkItem] = {}
    for cell in cells:
        for item in (*cell.specs, cell.item):
            items.setdefault(key_of(item), item)
    return items


def check_same_inputs(store: RunStore, items: Iterable[WorkItem]) -> None:
    """Refuse a store whose runs of these specs were trained on other data or another model than those available now.

    A run's id covers the names of its task and model, not their contents; this compares them for runs that a sweep
    only reads. Inputs that are absent are not compared, so that reports can be drawn without the data.
    """
    fingerprint = cache(_fingerprint)
    for spec in (item for item in items if isinstance(item, RunSpec)):
        record = store.record(spec) or {}
        for name, source in (("data", all_rows(spec.data)), ("model", spec.encoder.model)):
            before, current = record.get("fingerprints", {}).get(name), fingerprint(source)
            if None not in (before, current) and before != current:
                raise UserError(f"{store.run_folder(spec)} holds this run on another {name}: use a new store")


def _fingerprint(source: DataSpec | str) -> str | None:
    """Hash the contents of a task or of the model of this name; None if it cannot be loaded."""
    from scala_lab.data.sources import load_task
    from scala_lab.data.tokens import data_fingerprint
    from scala_lab.models.loading import locate_model, model_fingerprint

    try:
        if isinstance(source, DataSpec):
            return data_fingerprint(load_task(source))
        return model_fingerprint(locate_model(source))
    except UserError:
        return None


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Try to hold a lock for the block, and yield whether it was acquired; the file exists only while it is held."""
    handle = _acquire(file)
    if handle is None:
        yield False
        return
    ended = threading.Event()
    heartbeat = threading.Thread(target=_beat, args=(handle, ended), name="lock-heartbeat", daemon=True)
    heartbeat.start()
    try:
        yield True
    finally:
        ended.set()
        heartbeat.join()
        file.unlink(missing_ok=True)  # before the flock goes, so that nobody locks a file that is about to vanish
        handle.close()


def _acquire(file: Path) -> IO[str] | None:
    """Return the locked file with this process's name in it, or None if another process holds the lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = file.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), file.stat()):
                break
        handle.close()  # its holder removed the file after it was opened here
    if _held_by_other_host(handle):
        handle.close()
        return None
    handle.truncate(0)
    handle.write(json.dumps({"host": platform.node(), "pid": os.getpid()}))
    handle.flush()
    return handle


def _held_by_other_host(handle: IO[str]) -> bool:
    """Return whether another host, whose flock may be invisible here, has touched its lock recently."""
    handle.seek(0)
    try:
        host = json.load(handle)["host"]
    except (ValueError, KeyError, TypeError):  # a new file, or its writer was killed
        return False
    return host != platform.node() and time.time() - os.fstat(handle.fileno()).st_mtime < STALE_SECONDS


def _beat(handle: IO[str], ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_SECONDS):
        os.utime(handle.fileno())
