"""Times of whole runs over workers, made of timed steps of every task; projected where there are too few cores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.methods.recipes import find_recipe
from scala_lab.study import Cell
from scala_lab.study.variants import BASELINE, EFFECTIVE, LAMB, SCALA, MethodVariant
from scala_lab.sweep.cells import Measurement
from scala_lab.timing import measurements
from scala_lab.timing.calibration import WITHIN, Calibration
from scala_lab.timing.model import even_load
from studies._timings import RATES, calibration, first_steps, measured

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

TIMES, CONSTANTS = "times of steps", "constants"
"""Kinds of cells."""
PAPER_WORKERS = 32
"""What the paper's table has; projected where it is not measured."""
STEPS, WARMUP = 4, 1
"""Steps of each kind on each task: there are many kinds."""
MEASURED, PROJECTED = "measured", "projected"
NOISY = tuple(row.but(f"{row.method} with noise", delay=0.0) for row in (SCALA, EFFECTIVE))


def worker_counts(profile: Profile) -> list[int]:
    """One, and the most that the profile times."""
    return sorted({1, max(profile.workers)})


def time_cells(profile: Profile) -> list[Cell]:
    """Steps of all tasks without and with noise, for each model and number of workers; and this machine's constants."""
    cells = []
    for model in profile.models:
        places = [(task, row, size) for task in profile.tasks for row, size in _rows(profile)]
        specs = tuple(first_steps(profile, row, task, size, model) for task, row, size in places)
        for workers in worker_counts(profile):
            settings: dict[str, Any] = {"names": [_name(task, row.method) for task, row, _ in places]}
            settings |= {"workers": workers, "steps": STEPS, "warmup": WARMUP}
            settings["threads"] = workers * (profile.settings.get("threads") or 1)
            measurement = Measurement(measurements.step_times, specs, settings, alone=True)
            cells.append(Cell(measurement, kind=TIMES, model=model, workers=workers))
    if profile.settings.get("device") == "cuda":
        return cells
    return [*cells, Cell(calibration(profile), kind=CONSTANTS)]


def run_times(profile: Profile, done: pd.DataFrame) -> pd.DataFrame:
    """One row per model, task, method and number of workers: seconds of a run, and whether measured or projected."""
    import pandas as pd

    cells = measured(done[done["kind"] == TIMES]).to_dict("records")
    constants = [Calibration.from_dict(cell) for cell in done[done["kind"] == CONSTANTS].to_dict("records")]
    rows: list[dict[str, Any]] = []
    for cell in cells:
        rows += _measured_rows(profile, cell)
        if constants and cell["workers"] == 1 and cell["model"] == profile.models[0]:
            rows += _projected_rows(profile, cell, constants[0])
    return pd.DataFrame(rows, columns=["model", "method", "batch size", "workers", "times", "task", "seconds"])


def time_table(profile: Profile, times: pd.DataFrame) -> pd.DataFrame:
    """Seconds by task, and how many times faster than the baseline on as many workers: the mean of the logarithms."""
    keys = ["model", "method", "batch size", "workers", "times"]
    table = times.pivot_table("seconds", keys, "task", sort=False)[list(profile.tasks)]
    alike = ["model", "workers", "times"]
    baseline = table.xs(BASELINE.method, level="method").droplevel("batch size")
    ratios = np.log(baseline.loc[[tuple(key[keys.index(name)] for name in alike) for key in table.index]].to_numpy())
    faster = np.exp((ratios - np.log(table.to_numpy())).mean(axis=1))
    return table.rename(columns=lambda task: f"{task} time (s)").assign(**{"times faster than baseline": faster})


def time_notes(times: pd.DataFrame) -> list[str]:
    """What the seconds are."""
    found = [
        f"Medians of {STEPS} steps after {WARMUP} of warm-up, of every kind on every task with nothing else on the "
        "machine, times the steps of a run: these are its seconds. ScaLA's are plain steps up to its delay and steps "
        "with noise after it."
    ]
    if PROJECTED in set(times["times"]):
        found.append(
            f"Projected to {PAPER_WORKERS} workers, on hosts like this one joined by links of {RATES[0]}, by the model "
            "of time that the study of projection holds against measured steps."
        )
    return found


def _rows(profile: Profile) -> list[tuple[MethodVariant, int]]:
    large = profile.large_batch
    return [(BASELINE, profile.small_batch), (LAMB, large), *((row, large) for row in NOISY)]


def _name(task: str, method: str) -> str:
    return f"{task} {method}"


def _methods(profile: Profile) -> Iterator[tuple[MethodVariant, int, float]]:
    """Rows of the table: method, batch size and the share of its epochs that have noise."""
    epochs = profile.settings["epochs"]
    yield BASELINE, profile.small_batch, 0.0
    for row in (SCALA, EFFECTIVE):
        delay = find_recipe(row.recipe).option_values()["delay"]
        yield row, profile.large_batch, max(0.0, 1 - delay / epochs)


def _measured_rows(profile: Profile, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    epochs = profile.settings["epochs"]

    def epoch(task: str, method: str) -> float:
        name = _name(task, method)
        return float(np.median(cell[f"{name}:step"])) * cell[f"{name}:steps_per_epoch"]

    for task in profile.tasks:
        for row, size, noise in _methods(profile):
            plain = epoch(task, BASELINE.method if row is BASELINE else LAMB.method)
            seconds = (1 - noise) * plain + (noise * epoch(task, f"{row.method} with noise") if noise else 0.0)
            yield _row(cell["model"], row, size, int(cell["workers"]), MEASURED, task, epochs * seconds)


def _projected_rows(profile: Profile, cell: dict[str, Any], constants: Calibration) -> Iterator[dict[str, Any]]:
    """The baseline and ScaLA as the paper has it: the calibration knows no other kind of noise."""
    if max(profile.workers) >= PAPER_WORKERS:
        return
    model = constants.model(RATES[0] if RATES[0] in constants.links else WITHIN, constants.cores)
    micro_batch = int(profile.settings.get("micro_batch", 64))
    for task in profile.tasks:
        for row, size, noise in _methods(profile):
            if row is EFFECTIVE or size < PAPER_WORKERS:
                continue
            name = _name(task, BASELINE.method if row is BASELINE else LAMB.method)
            length = float(np.sum(cell[f"{name}:tokens"]) / np.sum(cell[f"{name}:samples"]))
            load = even_load(size, PAPER_WORKERS, micro_batch, length)
            optimizer = "adamw" if row is BASELINE else "lamb"
            seconds = model.step_seconds(load, PAPER_WORKERS, optimizer, noise=noise)
            steps = profile.settings["epochs"] * cell[f"{name}:steps_per_epoch"]
            yield _row(cell["model"], row, size, PAPER_WORKERS, PROJECTED, task, steps * seconds)


def _row(
    model: str, row: MethodVariant, size: int, workers: int, times: str, task: str, seconds: float
) -> dict[str, Any]:
    place = {"model": model, "method": row.method, "batch size": size, "workers": workers, "times": times}
    return {**place, "task": task, "seconds": seconds}


def seconds_by(times: pd.DataFrame, workers: int) -> dict[tuple[str, str, str], float]:
    """Measured seconds on some number of workers, by model, task and method."""
    rows = times[(times["workers"] == workers) & (times["times"] == MEASURED)]
    keys = zip(rows["model"], rows["task"], rows["method"], strict=True)
    return {key: seconds for key, seconds in zip(keys, rows["seconds"], strict=True) if not math.isnan(seconds)}
