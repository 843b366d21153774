"""Short runs that only time is asked of: the first steps of methods, with noise from the first one, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec
from scala_lab.study import Cell
from scala_lab.study.variants import BASELINE, MethodVariant
from scala_lab.sweep.cells import Measurement
from scala_lab.timing import measurements
from scala_lab.timing.calibration import PIECE_SECONDS, WITHIN
from studies._checkpoints import middle_rate

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

LEAST_STEPS, ROWS, WARMUP = 6, 1536, 2
"""Steps that are kept: as many as have this many rows at the large batch size, but not fewer; others before them."""
RATES = ("1gbit", "200mbit")
"""Links between two hosts that are measured where hosts can be had on one machine."""


@dataclass(frozen=True)
class Place:
    """Where steps are timed.

    Attributes:
        workers: Processes.
        rate: Of the link between two hosts; None for one host.
    """

    workers: int
    rate: str | None = None

    @property
    def link(self) -> str:
        """What the workers talk over."""
        return self.rate or WITHIN


def places(profile: Profile, rates: Sequence[str] = RATES) -> list[Place]:
    """Every number of workers of the profile on one host, and two workers on two hosts, unless GPUs are asked for."""
    here = [Place(workers) for workers in profile.workers]
    apart = profile.settings.get("device") != "cuda" and max(profile.workers) >= 2
    return here + [Place(2, rate) for rate in rates if apart]


def kept_steps(profile: Profile) -> int:
    """How many steps are timed: small ones vary most, and cost least."""
    return max(LEAST_STEPS, ROWS // profile.large_batch)


def step_note(profile: Profile) -> str:
    """What times of steps are."""
    return f"Medians of {kept_steps(profile)} steps after {WARMUP} of warm-up"


def first_steps(profile: Profile, row: MethodVariant, task: str, batch_size: int, model: str | None = None) -> RunSpec:
    """A run of one step with one worker: it shows that the method runs here, and names what is timed."""
    rate = middle_rate(profile, row, batch_size)
    overrides = {**row.overrides, "workers": 1, "max_steps": 1}
    return profile.spec(task, row.recipe, batch_size, rate, seed=profile.seeds[0], model=model, **overrides)


def calibration(profile: Profile) -> Measurement:
    """The constants of this machine."""
    spec = first_steps(profile, BASELINE, profile.pair[0], profile.small_batch)
    settings: dict[str, Any] = {"rates": list(RATES), "seconds": PIECE_SECONDS}
    settings["threads"] = max(profile.workers) * (profile.settings.get("threads") or 1)
    return Measurement(measurements.calibration, (spec,), settings, alone=True)


def step_cell(profile: Profile, rows: Sequence[tuple[MethodVariant, int]], task: str, place: Place) -> Cell:
    """The times of steps of several methods, each at its batch size, at one place."""
    fitting = [(row, batch_size) for row, batch_size in rows if place.workers <= batch_size]
    specs = tuple(first_steps(profile, row, task, batch_size) for row, batch_size in fitting)
    threads = place.workers * (profile.settings.get("threads") or 1)
    settings: dict[str, Any] = {"names": [row.method for row, _ in fitting], "workers": place.workers}
    settings |= {"steps": kept_steps(profile), "warmup": WARMUP, "threads": threads, "rate": place.rate}
    measurement = Measurement(measurements.step_times, specs, settings, alone=True)
    sizes = {row.method: batch_size for row, batch_size in fitting}
    return Cell(measurement, task=task, workers=place.workers, link=place.link, sizes=sizes)


def step_rows(done: pd.DataFrame) -> pd.DataFrame:
    """One row per place, method and step: seconds with and without communication, and what was done in them."""
    import pandas as pd

    rows = []
    for cell in measured(done).to_dict("records"):
        for label, batch_size in cell["sizes"].items():
            for step, seconds in enumerate(cell[f"{label}:step"]):
                rows.append(
                    {"label": label, "B": batch_size, "workers": cell["workers"], "link": cell["link"], "step": step}
                    | {"seconds": seconds, "without": cell[f"{label}:without"][step]}
                    | {name: cell[f"{label}:{name}"][step] for name in ("samples", "tokens", "flops", "exchange")}
                    | {"steps_per_epoch": cell[f"{label}:steps_per_epoch"]}
                    | {name: cell[name] for name in ("matmul_rate", "gradient_bytes")}
                )
    names = ["label", "B", "workers", "link", "step", "seconds", "without", "samples", "tokens", "flops", "exchange"]
    return pd.DataFrame(rows, columns=[*names, "steps_per_epoch", "matmul_rate", "gradient_bytes"])


def measured(done: pd.DataFrame) -> pd.DataFrame:
    """Cells but those of places that this machine cannot have."""
    return done[done["lack"].isna()] if "lack" in done else done


def lacking(done: pd.DataFrame) -> list[str]:
    """A note on places that could not be measured."""
    missing = done[~done["lack"].isna()] if "lack" in done else done.iloc[:0]
    if missing.empty:
        return []
    return [f"Not measured over {', '.join(missing['link'])}: {missing['lack'].iloc[0]}."]


def medians(rows: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Median and quartiles over steps as value, low and high, in the order of the rows."""
    groups = rows.groupby(by, sort=False)[value]
    found = groups.agg(
        low=lambda values: values.quantile(0.25), value="median", high=lambda values: values.quantile(0.75)
    )
    return found.reset_index()
