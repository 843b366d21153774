"""What the studies of time share: timed first steps of methods, their medians, and the time model's continuation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scala_lab.config import RunSpec
from scala_lab.study import Cell, DataFrame, Profile
from scala_lab.study.gates import Gate
from scala_lab.study.statistics import FACTOR, Estimate, mean_interval
from scala_lab.study.tables import data_frame
from scala_lab.study.variants import BASELINE, LAMB, MethodVariant
from scala_lab.sweep.cells import Measurement
from scala_lab.timing.calibration import PIECE_SECONDS, WITHIN, Calibration, calibration
from scala_lab.timing.harness import step_times
from scala_lab.timing.model import Load, even_load

SMALL, LARGE, NO_DELAY = "small batch", "large batch", "ScaLA without delay"
CALIBRATION = "calibration"
"""Stands in the place of a link where a cell measures the machine's constants instead of steps."""
MIN_STEPS, ROWS, WARMUP = 6, 1536, 2
"""Timed steps: as many as have this many rows at the large batch size, but not fewer; after some of warm-up."""
TIMED_STEPS = "timed steps"  # what n counts in estimates of time
RATES = ("1gbit", "200mbit")  # links between two hosts that are measured where one machine can have hosts
GAIN = 1.2
"""Doubling the workers is said to help when it divides the time by more than this; perfect scaling divides it by 2."""
PAPER_WORKERS = 32  # how far the paper's large batch scales
BAND = 0.9  # share of the held-out cells whose error lies within the band of a projection


def first_steps(profile: Profile, row: MethodVariant, task: str, batch_size: int, model: str | None = None) -> RunSpec:
    """Return the spec of one step with one worker: its run shows that the method works here, before it is timed.

    Its rate is that of `scala-lab train`: how long a step takes does not depend on it.
    """
    overrides = {**row.overrides, "workers": 1, "max_steps": 1}
    return profile.spec(task, row.recipe, batch_size, seed=profile.seeds[0], model=model, **overrides)


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

    All run on one host, and two workers also on two hosts over each link, unless the profile has GPUs; the calibration
    of the machine is added where it is needed to project times to more workers.
    """
    links, cells = [(workers, WITHIN) for workers in profile.workers], []
    if profile.settings.get("device") != "cuda":
        links += [(2, rate) for rate in rates if max(profile.workers) >= 2]
        cells.append(Cell(machine_constants(profile), task=task, workers=0, link=CALIBRATION, sizes={}))
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
    """Return the cells that have timed steps, without the calibration and what this machine cannot measure."""
    timed = done[done["link"] != CALIBRATION] if "link" in done else done
    return timed[timed["lack"].isna()] if "lack" in timed else timed


def lacking(done: DataFrame) -> list[str]:
    """Return a note on the links that could not be measured, if there are any."""
    missing = done[done["lack"].notna()] if "lack" in done else done.iloc[:0]
    return [f"Not measured over {', '.join(missing['link'])}: {missing['lack'].iloc[0]}."] if len(missing) else []


def medians(rows: DataFrame, by: list[str], value: str) -> DataFrame:
    """Return median and quartiles over steps as value, low and high, in the order of the rows."""
    low, high = (lambda values, share=share: values.quantile(share) for share in (0.25, 0.75))
    return rows.groupby(by, sort=False)[value].agg(low=low, value="median", high=high).reset_index()


def factor_of(ratios: Sequence[float]) -> Estimate:
    """Return the geometric mean of ratios, one per timed step."""
    return mean_interval(ratios, FACTOR, counts=TIMED_STEPS)


def gain_per_doubling(line: DataFrame, value: str, counts: Sequence[float]) -> Estimate:
    """Return the factor by which doubling the workers divides the time, on average from the first to the last count."""
    if len(counts) < 2:
        return factor_of([])
    first, last = (line[line["workers"] == count].set_index("step")[value] for count in (counts[0], counts[-1]))
    return factor_of((first / last) ** (1 / math.log2(counts[-1] / counts[0])))


def workers_gate(counts: Sequence[float], needed: int) -> Gate:
    """Ask that steps were timed with so many workers."""
    most = max(counts, default=0)
    found = f"timed with up to {most:g} worker{'s' * (most != 1)}"
    return Gate("workers", most >= needed, found, f"steps timed with {needed} workers")


def heldout_rows(done: DataFrame) -> DataFrame:
    """Return one row per timed cell over a calibrated link: seconds of a step, predicted and measured.

    The predictions come from the calibration among the cells, which has seen none of the timed steps.
    """
    constants, rows = constants_of(done), []
    if constants is None:
        return data_frame([])
    for cell in measured(done).to_dict("records"):
        workers, link = int(cell["workers"]), cell["link"]
        if workers > 1 and link not in constants.links:
            continue
        model = constants.model(link)
        predictions = {"step": model.step_seconds, "without": model.without_communication}
        for label, batch_size in cell["sizes"].items():
            names = ("micro_batches", "rows", "tokens", "squares")
            loads = [Load(*load) for load in zip(*(cell[f"{label}:load {name}"] for name in names), strict=True)]
            for value in predictions if workers > 1 else ("step",):
                predicted = np.median([predictions[value](load, workers, **_kind(label)) for load in loads])
                seconds = np.median(cell[f"{label}:{value}"])
                rows.append(
                    {"task": cell["task"], "method": label, "B": batch_size, "workers": workers, "link": link}
                    | {"communication": "yes" if value == "step" else "no", "measured": seconds}
                    | {"predicted": predicted, "predicted / measured": predicted / seconds}
                )
    return data_frame(rows)


def constants_of(done: DataFrame) -> Calibration | None:
    """Return the calibration among the cells, if it was taken."""
    calibrated = done[done["link"] == CALIBRATION]
    return None if calibrated.empty else Calibration.from_dict(calibrated.iloc[0].to_dict())


def error_factors(rows: DataFrame) -> DataFrame:
    """Return the factors, at least 1, by which predictions of `heldout_rows` are off."""
    return np.exp(np.abs(np.log(rows["predicted / measured"])))


def _kind(label: str) -> dict[str, Any]:
    """Return the optimizer and the share of noise of a line's steps, as the time model takes them."""
    noisy = label == NO_DELAY
    return {"optimizer": "lamb" if noisy or label == LAMB.method else "adamw", "noise": float(noisy)}


def projected_steps(profile: Profile, done: DataFrame) -> DataFrame:
    """Return seconds of a step beyond the measured numbers of workers, up to the paper's, by label.

    Columns: label, B, workers, steps_per_epoch, seconds, without, and `factor`: 90% of the held-out cells lie within
    this factor of their prediction. The hosts are like this one and filled like it, their links as fast as within it.
    Rows have the padded length that those of the first worker have on the most workers that were timed. Empty where
    nothing was calibrated.
    """
    constants, here, heldout = constants_of(done), measured(done[done["link"] == WITHIN]), heldout_rows(done)
    if constants is None or here.empty or heldout.empty:
        return data_frame([], ["label", "B", "workers", "steps_per_epoch", "seconds", "without", "factor"])
    model, factor = constants.model(WITHIN, constants.cores), float(error_factors(heldout).quantile(BAND, "higher"))
    cell, rows = here.loc[here["workers"].idxmax()].to_dict(), []
    counts = [2**power for power in range(1, 11) if cell["workers"] < 2**power <= PAPER_WORKERS]
    for label, batch_size in cell["sizes"].items():
        length = float(np.sum(cell[f"{label}:load tokens"]) / np.sum(cell[f"{label}:load rows"]))
        micro_batch = min(int(profile.settings.get("micro_batch", 64)), batch_size)
        for workers in counts:
            load = even_load(batch_size, workers, micro_batch, length)
            rows.append(
                {"label": label, "B": batch_size, "workers": workers, "factor": factor}
                | {"steps_per_epoch": cell[f"{label}:steps_per_epoch"]}
                | {"seconds": model.step_seconds(load, workers, **_kind(label))}
                | {"without": model.without_communication(load, workers, **_kind(label))}
            )
    return data_frame(rows)


def projection_note(projected: DataFrame) -> list[str]:
    """Say what the dashed part of a figure is, if there is any."""
    if projected.empty:
        return []
    return [
        f"Dashed to {projected['workers'].max()} workers: projected by the time model (study `projection`) for hosts "
        "like this one with links as within it. The band is the factor within which it predicts "
        f"{100 * BAND:.0f}% of this study's timed cells, {projected['factor'].iloc[0]:.2f}."
    ]


def with_projection(lines: DataFrame, projected: DataFrame, value: str) -> DataFrame:
    """Return measured medians followed by projected values, in one figure's columns: measured, value, low, high."""
    import pandas as pd

    if projected.empty:
        return lines.assign(measured=True)
    ahead = projected.assign(measured=False, value=projected[value])
    ahead = ahead.assign(low=ahead["value"] / ahead["factor"], high=ahead["value"] * ahead["factor"])
    columns = [*lines.columns, "measured"]
    return pd.concat([lines.assign(measured=True), ahead[columns]], ignore_index=True)
