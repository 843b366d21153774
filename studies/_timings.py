"""What the studies of time share: timed first steps of methods, their medians, and the gain from more workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.study import Cell, DataFrame, Profile
from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.variants import BASELINE, MethodVariant
from scala_lab.study.verdicts import Part
from scala_lab.sweep.cells import Measurement
from scala_lab.timing.calibration import PIECE_SECONDS, WITHIN, calibration
from scala_lab.timing.harness import step_times
from studies._checkpoints import middle_rate

SMALL, LARGE = "small batch", "large batch"
MIN_STEPS, ROWS, WARMUP = 6, 1536, 2
"""Timed steps: as many as have this many rows at the large batch size, but not fewer; after some of warm-up."""
RATES = ("1gbit", "200mbit")
"""Links between two hosts that are measured where one machine can have hosts."""
GAIN = 1.2
"""Doubling the workers is said to help when it divides the time by more than this; perfect scaling divides it by 2."""
PAPER_WORKERS = 32
"""How far the paper's large batch scales."""


def first_steps(profile: Profile, row: MethodVariant, task: str, batch_size: int, model: str | None = None) -> RunSpec:
    """Return the spec of one step with one worker: its run shows that the method works here, before it is timed."""
    rate = middle_rate(profile, row, batch_size)
    overrides = {**row.overrides, "workers": 1, "max_steps": 1}
    return profile.spec(task, row.recipe, batch_size, rate, seed=profile.seeds[0], model=model, **overrides)


def timed_steps(
    profile: Profile, specs: Mapping[str, RunSpec], workers: int, steps: int, warmup: int, **more: Any
) -> Measurement:
    """Return the measurement that times the steps of several runs, by name, with some number of workers."""
    settings = {"names": list(specs), "workers": workers, "steps": steps, "warmup": warmup, **more}
    settings["threads"] = workers * (profile.settings.get("threads") or 1)
    return Measurement(step_times, tuple(specs.values()), settings, alone=True)


def machine_constants(profile: Profile) -> Measurement:
    """Return the calibration of this machine."""
    spec = first_steps(profile, BASELINE, profile.pair[0], profile.small_batch)
    threads = max(profile.workers) * (profile.settings.get("threads") or 1)
    settings = {"rates": list(RATES), "seconds": PIECE_SECONDS, "threads": threads}
    return Measurement(calibration, (spec,), settings, alone=True)


def step_cells(
    profile: Profile, rows: Sequence[tuple[MethodVariant, int]], task: str, rates: Sequence[str] = RATES
) -> list[Cell]:
    """Return timings of methods, each at its batch size, for every number of workers of the profile.

    All run on one host, and two workers also on two hosts over each link, unless the profile has GPUs.
    """
    links = [(workers, WITHIN) for workers in profile.workers]
    if profile.settings.get("device") != "cuda" and max(profile.workers) >= 2:
        links += [(2, rate) for rate in rates]
    cells = []
    for workers, link in links:
        sizes = {row.method: batch_size for row, batch_size in rows if workers <= batch_size}
        specs = {row.method: first_steps(profile, row, task, size) for row, size in rows if row.method in sizes}
        rate = None if link == WITHIN else link
        measurement = timed_steps(profile, specs, workers, step_count(profile), WARMUP, rate=rate)
        cells.append(Cell(measurement, task=task, workers=workers, link=link, sizes=sizes))
    return cells


def step_count(profile: Profile) -> int:
    """Return how many steps are timed: the more, the smaller the large batch, as short steps vary most."""
    return max(MIN_STEPS, ROWS // profile.large_batch)


def step_note(profile: Profile, steps: str, task: str) -> str:
    """Return the note that says how the seconds of a table come from timed steps."""
    timed = f"Medians of {step_count(profile)} steps after {WARMUP} of warm-up, times the steps of {steps}"
    return f"{timed}; {task}, one process per worker on this machine."


def step_rows(done: DataFrame) -> DataFrame:
    """Return one row per measured cell, method and step: seconds with and without communication, and the work done."""
    import pandas as pd

    lists = ("without", "samples", "tokens", "flops", "exchange", "steps_per_epoch")
    parts = [
        {"label": label, "B": batch_size, "workers": cell["workers"], "link": cell["link"]}
        | {"step": range(len(cell[f"{label}:step"])), "seconds": cell[f"{label}:step"]}
        | {name: cell[f"{label}:{name}"] for name in lists}
        | {name: cell[name] for name in ("matmul_rate", "gradient_bytes")}
        for cell in measured(done).to_dict("records")
        for label, batch_size in cell["sizes"].items()
    ]
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)


def measured(done: DataFrame) -> DataFrame:
    """Return the cells without those that this machine cannot measure."""
    return done[done["lack"].isna()] if "lack" in done else done


def lacking(done: DataFrame) -> list[str]:
    """Return a note on the links that could not be measured, if there are any."""
    missing = done.drop(measured(done).index)
    return [f"Not measured over {', '.join(missing['link'])}: {missing['lack'].iloc[0]}."] if len(missing) else []


def medians(rows: DataFrame, by: list[str], value: str) -> DataFrame:
    """Return median and quartiles over steps as value, low and high, in the order of the rows."""
    low, high = (lambda values, share=share: values.quantile(share) for share in (0.25, 0.75))
    return rows.groupby(by, sort=False)[value].agg(low=low, value="median", high=high).reset_index()


def gain_per_doubling(line: DataFrame, value: str, counts: list[float]) -> Estimate:
    """Return the factor by which doubling the workers divides the time, on average from the first to the last count."""
    if len(counts) < 2:
        return Estimate(math.nan, -math.inf, math.inf, 0, unit="x")
    pairs = paired_columns(line[["workers", "step", value]], value, "workers", counts[0], counts[-1])
    whole = paired_ratio(pairs["left"], pairs["right"])
    power = 1 / math.log2(counts[-1] / counts[0])
    return replace(whole, value=whole.value**power, low=whole.low**power, high=whole.high**power)


def undecided(parts: list[Part]) -> list[Part]:
    """Return the parts with their verdicts withheld: there are too few workers to judge what the paper claims."""
    return [replace(part, verdict="inconclusive") if part.estimate.n else part for part in parts]
