"""How the time of a whole run falls with the number of workers, for every method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scala_lab.methods.recipes import find_recipe
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.variants import BASELINE, LAMB, WITHOUT_DELAY
from scala_lab.study.verdicts import Claim, ClaimRecord, above, record
from scala_lab.timing.calibration import WITHIN
from studies._timings import lacking, measured, medians, places, step_cell, step_note, step_rows
from studies.scalability import GAIN, MOST, _counts, _gain, _undecided

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

SMALL = "small batch"
RATES = ("200mbit",)
"""One link between hosts is enough to see what it does to each method."""


def cells(profile: Profile) -> list[Cell]:
    """Steps of four kinds; ScaLA with its delay is made of LAMB's steps and steps with noise."""
    large = profile.large_batch
    rows = (
        (BASELINE.named(SMALL), profile.small_batch),
        (BASELINE, large),
        (LAMB, large),
        (WITHOUT_DELAY.named(NO_DELAY), large),
    )
    return [step_cell(profile, rows, profile.pair[1], place) for place in places(profile, RATES)]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Five lines over workers."""
    from scala_lab.report.figures.timing import worker_lines

    done = frame[frame["status"] == "finished"]
    if measured(done).empty:
        return Findings()
    epochs = int(profile.settings["epochs"])
    everywhere = run_rows(done, epochs)
    rows = everywhere[everywhere["link"] == WITHIN]
    lines = medians(rows, ["label", "workers"], "seconds")
    named = lines.assign(label=[_title(label, profile) for label in lines["label"]])
    delay = find_recipe("scala").option_values()["delay"]
    notes = [
        f"{step_note(profile)}, times the steps of {epochs} epochs; "
        f"{done['task'].iloc[0]}, one process per worker on this machine.",
        f"ScaLA: LAMB's steps for {delay:g} of {epochs} epochs, then steps with noise.",
        *lacking(done),
    ]
    titles = [
        f"P = {workers:g}" + ("" if link == WITHIN else f", 2 hosts, {link}")
        for workers, link in zip(everywhere["workers"], everywhere["link"], strict=True)
    ]
    table = medians(everywhere.assign(place=titles), ["label", "place"], "seconds")
    table = table.pivot_table("value", "label", "place", sort=False)
    return Findings(
        tables=[Tabulation("", table, "Figure 5: seconds per run over workers.", notes)],
        figures=[
            Drawing(
                "",
                worker_lines(named, "Time of a run over workers", "seconds per run"),
                f"Figure 5: scalability of the methods on {done['task'].iloc[0]}.",
            )
        ],
        claims=[c14(rows)],
        found=_sentence(lines),
    )


def run_rows(done: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """One row per line, number of workers and step: seconds of a run at that step's pace."""
    import pandas as pd

    steps = step_rows(done)
    found = steps[["label", "workers", "link", "step"]].copy()
    found["seconds"] = steps["seconds"] * steps["steps_per_epoch"] * epochs
    share = min(find_recipe("scala").option_values()["delay"] / epochs, 1.0)
    keys = ["workers", "link", "step"]
    plain = found[found["label"] == LAMB.method].set_index(keys)["seconds"]
    noisy = found[found["label"] == NO_DELAY].set_index(keys)["seconds"]
    mixed = (share * plain + (1 - share) * noisy).dropna().reset_index().assign(label=SCALA)
    return pd.concat([found[found["label"] != NO_DELAY], mixed, found[found["label"] == NO_DELAY]], ignore_index=True)


def _title(label: str, profile: Profile) -> str:
    return f"baseline, B = {profile.small_batch}" if label == SMALL else f"{label}, B = {profile.large_batch}"


def _sentence(lines: pd.DataFrame) -> str:
    most = lines["workers"].max()
    last = lines[lines["workers"] == most].set_index("label")["value"]
    if not {SMALL, SCALA, NO_DELAY} <= set(last.index):
        return ""
    return (
        f"On {most:g} workers ScaLA's run takes 1/{last[SMALL] / last[SCALA]:.2f} of the small-batch baseline's time, "
        f"and without delay {last[NO_DELAY] / last[SCALA]:.2f}x as long."
    )


SCALA, NO_DELAY = "ScaLA", "ScaLA without delay"

C14 = Claim(
    id="C14",
    source="Figure 5, Section 5",
    study="method_scalability",
    statement="All large-batch methods scale to 32 workers, and the delayed start of the noise saves most on 1 to 16.",
    paper="the four large-batch lines fall up to 32 workers, where they meet",
    rule="Per doubling of workers each large-batch line falls by a factor above 1.2; without delay over with delay is "
    "larger on up to 16 workers than on 32. Decided only where 32 workers were measured.",
)


def c14(frame: pd.DataFrame) -> ClaimRecord:
    """The four large-batch lines, and what the delay saves."""
    parts = []
    for label in (BASELINE.method, LAMB.method, SCALA, NO_DELAY):
        line = frame[frame["label"] == label]
        counts = _counts(line)
        if counts:
            parts.append(above(f"{label}: gain per doubling of workers", _gain(line, "seconds", counts), GAIN))
    if not parts:
        return record(C14, ())
    counts = _counts(frame)
    saved = {count: _saved(frame[frame["workers"] == count]) for count in counts}
    few = [saved[count] for count in counts if count < MOST and saved[count].n]
    best = max(few, key=lambda estimate: estimate.value, default=Estimate(math.nan, -math.inf, math.inf, 0))
    if MOST in saved:
        most = saved[MOST]
        ratio = Estimate(best.value / most.value, best.low / most.high, best.high / most.low, best.n, unit="x")
        return record(C14, [*parts, above("what the delay saves on fewer workers, over that on 32", ratio, 1.0)])
    return record(C14, _undecided([*parts, above("without delay over with delay, at best", best, 1.0)]))


def _saved(frame: pd.DataFrame) -> Estimate:
    pairs = paired_columns(frame[["label", "step", "seconds"]], "seconds", "label", NO_DELAY, SCALA)
    return paired_ratio(pairs["left"], pairs["right"])


STUDY = Study(
    name="method_scalability",
    title="Scalability of the methods",
    question="How does the time of a whole run fall with the number of workers for each method?",
    cells=cells,
    analyse=analyse,
    source="Figure 5",
    paper_found="BERT-base on SST-2: B=32 stops at 4 GPUs, all large-batch methods scale to 32, where they take about "
    "equally long; the delay saves most on 1 to 16.",
    claims=(C14,),
)

if __name__ == "__main__":
    from scala_lab.study.api import main

    raise SystemExit(main(STUDY))
