"""Short runs that only time is asked of: the first steps of a method, with noise from the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scala_lab.runs.measurement import Measurement
from scala_lab.spec import RunSpec
from scala_lab.study import Cell
from scala_lab.study.rows import Row
from studies._checkpoints import middle_rate

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

STEPS, WARMUP = 6, 2


def first_steps(profile: Profile, row: Row, task: str, batch_size: int) -> RunSpec:
    """A run of one step with one worker: it shows that the method runs here, and names what is timed."""
    rate = middle_rate(profile, row, batch_size)
    overrides = {**row.overrides, "workers": 1, "max_steps": 1}
    return profile.spec(task, row.recipe, batch_size, rate, seed=profile.seeds[0], **overrides)


def step_cell(profile: Profile, row: Row, task: str, batch_size: int, workers: int) -> Cell:
    """The time of a step with some number of workers."""
    spec = first_steps(profile, row, task, batch_size)
    threads = workers * (profile.settings.get("threads") or 1)
    settings = {"workers": workers, "steps": STEPS, "warmup": WARMUP, "threads": threads}
    measurement = Measurement("scala_lab.scaling.measurements:step_time", (spec,), settings, alone=True)
    return Cell(measurement, task=task, method=row.method, batch_size=batch_size, workers=workers)


def step_rows(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per timed step: seconds of the step, and without communication."""
    return [
        {"step": step, "seconds": seconds, "without": max(seconds - cell["all_reduce_seconds"], 0.0)}
        for step, seconds in enumerate(cell["step_seconds_of"])
    ]


def medians(rows: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Median and quartiles over steps as value, low and high, in the order of the rows."""
    groups = rows.groupby(by, sort=False)[value]
    found = groups.agg(
        low=lambda values: values.quantile(0.25), value="median", high=lambda values: values.quantile(0.75)
    )
    return found.reset_index()
