"""The lists at the end of a report's page: every run, every measurement, and what they were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scala_lab.report.chapter import Chapter
from scala_lab.report.commands import train_command
from scala_lab.report.tables import NOTHING
from scala_lab.runs.records import Records


@dataclass(frozen=True)
class Line:
    """A run or a measurement.

    Attributes:
        name: For people.
        status: finished, diverged, failed or running.
        cells: By column: what is shown, and what it is sorted by.
        detail: The command that trains the run, or the settings of the measurement.
        error: What went wrong.
        studies: That look at it.
    """

    name: str
    status: str
    cells: Mapping[str, tuple[str, Any]]
    detail: str
    error: str
    studies: Sequence[str]


def run_lines(records: Records, chapters: Sequence[Chapter]) -> list[Line]:
    """All runs, by name."""
    lines = []
    for key, record in records.runs.items():
        spec = record["spec"]
        rate = record.get("learning_rate")
        timing = record.get("timing") or {}
        cells = {
            "task": _text(Path(spec["data"]["task"]).name),
            "method": _text(spec["recipe"]["method"]),
            "model": _text(Path(spec["encoder"]["model"]).name),
            "B": _number(spec["batches"]["batch_size"], ",d"),
            "rate": _number(rate, ".3g"),
            "seed": _number(spec["seed"], "d"),
            "score": _number(_score(record), ".2f"),
            "steps": _number(record.get("steps_done"), ",d"),
            "seconds": _number(timing.get("train_seconds"), ",.1f"),
        }
        error = " ".join(str(record.get("error") or "").split())
        lines.append(Line(record["name"], record["status"], cells, train_command(spec), error, _users(key, chapters)))
    return sorted(lines, key=lambda line: line.name)


def measurement_lines(records: Records, chapters: Sequence[Chapter]) -> list[Line]:
    """All measurements, by name."""
    lines = []
    for key, record in records.measurements.items():
        runs = [records.runs[run]["name"] if run in records.runs else run for run in record.get("of", ())]
        cells = {
            "function": _text(record["function"].rpartition(":")[2]),
            "runs": _number(len(runs), "d"),
            "seconds": _number(record.get("seconds"), ",.1f"),
        }
        settings = json.dumps(record["settings"], sort_keys=True)
        detail = f"{record['function']} {settings}" + (f" of {', '.join(runs)}" if runs else "")
        error = " ".join(str(record.get("error") or "").split())
        lines.append(Line(record["name"], record["status"], cells, detail, error, _users(key, chapters)))
    return sorted(lines, key=lambda line: line.name)


def environment_rows(records: Records) -> list[tuple[str, str]]:
    """What the runs were made with; where they differ, every value once."""
    found: dict[str, dict[str, None]] = {}
    for _, record in sorted(records.runs.items()):
        environment = record.get("environment") or {}
        packages = environment.get("packages") or {}
        for name, value in {**environment, **packages}.items():
            if name not in ("packages", "command", "host") and value is not None:
                found.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in found.items()]


def _users(key: str, chapters: Sequence[Chapter]) -> list[str]:
    return [chapter.name for chapter in chapters if key in chapter.ids]


def _score(record: Mapping[str, Any]) -> float | None:
    """The task's first metric on its first split, in percent."""
    values = [value for metrics in (record.get("metrics") or {}).values() for value in metrics.values()]
    return 100 * values[0] if values and values[0] is not None else None


def _text(value: str) -> tuple[str, Any]:
    return value, value


def _number(value: float | None, number_format: str) -> tuple[str, Any]:
    return (NOTHING, "") if value is None else (f"{value:{number_format}}", value)
