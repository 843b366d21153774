"""Figure 5: how the time of a whole run falls with the number of workers, for every method."""

from __future__ import annotations

import math

from scala_lab.methods.recipes import find_recipe
from scala_lab.report.figures.timing import worker_lines
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.variants import BASELINE, LAMB, WITHOUT_DELAY
from scala_lab.study.verdicts import Claim, ClaimRecord, above, record
from scala_lab.timing.calibration import WITHIN
from studies import _timings as timings
from studies._timings import GAIN, PAPER_WORKERS, SMALL

SCALA, NO_DELAY = "ScaLA", "ScaLA without delay"
DELAY = find_recipe("scala").option_values()["delay"]
RATES = ("200mbit",)
"""One link between hosts is enough to see its effect on each method."""


def cells(profile: Profile) -> list[Cell]:
    """Return timings of four kinds of steps; ScaLA's run is made of LAMB's steps and steps with noise."""
    large = profile.large_batch
    rows = [(BASELINE.named(SMALL), profile.small_batch), (BASELINE, large), (LAMB, large)]
    return timings.step_cells(profile, [*rows, (WITHOUT_DELAY.named(NO_DELAY), large)], profile.pair[1], RATES)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare the time of a run over workers for every method."""
    done = frame[frame["status"] == "finished"]
    if timings.measured(done).empty:
        return Findings()
    epochs, task = int(profile.settings["epochs"]), done["task"].iloc[0]
    everywhere = run_rows(done, epochs)
    rows = everywhere[everywhere["link"] == WITHIN]
    lines = timings.medians(rows, ["label", "workers"], "seconds")
    titles = [
        f"baseline, B = {profile.small_batch}" if label == SMALL else f"{label}, B = {profile.large_batch}"
        for label in lines["label"]
    ]
    columns = [
        f"P = {workers:g}" + ("" if link == WITHIN else f", 2 hosts, {link}")
        for workers, link in zip(everywhere["workers"], everywhere["link"], strict=True)
    ]
    table = timings.medians(everywhere.assign(column=columns), ["label", "column"], "seconds")
    table = table.pivot_table("value", "label", "column", sort=False)
    notes = [
        timings.step_note(profile, f"{epochs} epochs", task),
        f"ScaLA: LAMB's steps for {DELAY:g} of {epochs} epochs, then steps with noise.",
        *timings.lacking(done),
    ]
    figure = worker_lines(lines.assign(label=titles), "Time of a run over workers", "seconds per run")
    return Findings(
        tables=[Tabulation("", table, "Figure 5: seconds per run over workers.", notes)],
        figures=[Drawing("", figure, f"Figure 5: scalability of the methods on {task}.")],
        claims=[c14(rows)],
        found=_sentence(lines),
    )


def run_rows(done: DataFrame, epochs: int) -> DataFrame:
    """Return one row per line, number of workers, link and step: seconds of a run at that step's pace."""
    import pandas as pd

    steps = timings.step_rows(done)
    rows = steps[["label", "workers", "link", "step"]].copy()
    rows["seconds"] = steps["seconds"] * steps["steps_per_epoch"] * epochs
    share = min(DELAY / epochs, 1.0)
    plain, noisy = (
        rows[rows["label"] == label].set_index(["workers", "link", "step"])["seconds"]
        for label in (LAMB.method, NO_DELAY)
    )
    mixed = (share * plain + (1 - share) * noisy).dropna().reset_index().assign(label=SCALA)
    return pd.concat([rows[rows["label"] != NO_DELAY], mixed, rows[rows["label"] == NO_DELAY]], ignore_index=True)


def _sentence(lines: DataFrame) -> str:
    workers = lines["workers"].max()
    last = lines[lines["workers"] == workers].set_index("label")["value"]
    if not {SMALL, SCALA, NO_DELAY} <= set(last.index):
        return ""
    return (
        f"On {workers:g} workers ScaLA's run takes 1/{last[SMALL] / last[SCALA]:.2f} of the small-batch baseline's "
        f"time, and without delay {last[NO_DELAY] / last[SCALA]:.2f}x as long."
    )


C14 = Claim(
    id="C14",
    source="Figure 5, Section 5",
    study="method_scalability",
    statement="All large-batch methods scale to 32 workers, and the delayed start of the noise saves most on 1 to 16.",
    paper="the four large-batch lines fall up to 32 workers, where they meet",
    rule="Per doubling of workers each large-batch line falls by a factor above 1.2; without delay over with delay is "
    "larger on up to 16 workers than on 32. Decided only where 32 workers were measured.",
)


def c14(frame: DataFrame) -> ClaimRecord:
    """Judge the four large-batch lines, and what the delay saves."""
    parts = []
    for label in (BASELINE.method, LAMB.method, SCALA, NO_DELAY):
        line = frame[frame["label"] == label]
        if not line.empty:
            gain = timings.gain_per_doubling(line, "seconds", sorted(set(line["workers"])))
            parts.append(above(f"{label}: gain per doubling of workers", gain, GAIN))
    if not parts:
        return record(C14, ())
    saved = {count: _saved(frame[frame["workers"] == count]) for count in sorted(set(frame["workers"]))}
    few = [estimate for count, estimate in saved.items() if count < PAPER_WORKERS and estimate.n]
    best = max(few, key=lambda estimate: estimate.value, default=Estimate(math.nan, -math.inf, math.inf, 0))
    if PAPER_WORKERS in saved:
        last = saved[PAPER_WORKERS]
        ratio = Estimate(best.value / last.value, best.low / last.high, best.high / last.low, best.n, unit="x")
        return record(C14, [*parts, above("what the delay saves on fewer workers, over that on 32", ratio, 1.0)])
    return record(C14, timings.undecided([*parts, above("without delay over with delay, at best", best, 1.0)]))


def _saved(frame: DataFrame) -> Estimate:
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
    raise SystemExit(main(STUDY))
