"""Figure 5: how the time of a whole run falls with the number of workers, for every method."""

import math

from scala_lab.report.figures.timing import worker_lines
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.variants import BASELINE, LAMB, SCALA, SCALA_EARLY, WITHOUT_DELAY
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, judge, record, within
from scala_lab.timing.calibration import WITHIN
from studies import _timings as timings
from studies._timings import GAIN, NO_DELAY, PAPER_WORKERS, SMALL

LINES = (BASELINE.method, LAMB.method, SCALA.method, SCALA_EARLY.method, NO_DELAY)
RATES = ("200mbit",)  # one link between hosts is enough to see its effect on each method


def cells(profile: Profile) -> list[Cell]:
    """Return timings of four kinds of steps; ScaLA's run is made of LAMB's steps and steps with noise."""
    large = profile.large_batch
    rows = [(BASELINE.but(SMALL), profile.small_batch), (BASELINE, large), (LAMB, large)]
    return timings.step_cells(profile, [*rows, (WITHOUT_DELAY.but(NO_DELAY), large)], profile.pair[-1], RATES)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare the time of a run over workers for every method."""
    done = frame[frame["status"] == "finished"]
    if timings.measured(done).empty:
        return Findings()
    epochs, task = int(profile.settings["epochs"]), done["task"].iloc[0]
    everywhere, projected = run_rows(profile, timings.step_rows(done)), timings.projected_steps(profile, done)
    rows = everywhere[everywhere["link"] == WITHIN]
    columns = [
        f"P = {workers:g}" + ("" if link == WITHIN else f", 2 hosts, {link}")
        for workers, link in zip(everywhere["workers"], everywhere["link"], strict=True)
    ]
    table = timings.medians(everywhere.assign(column=columns), ["label", "column"], "seconds")
    table = table.pivot_table("value", "label", "column", sort=False)
    notes = [
        timings.step_note(profile, f"{epochs} epochs", task),
        f"ScaLA: LAMB's steps for {profile.late_delay:g} or {profile.early_delay:g} of {epochs} epochs, then steps "
        "with noise.",
        *timings.lacking(done),
    ]
    lines, figures = timings.medians(rows, ["label", "workers"], "seconds"), []
    if len(lines):
        if len(projected):
            ahead = run_rows(profile, projected.assign(link=WITHIN, step=0))
            projected = ahead.assign(factor=projected["factor"].iloc[0])
        shown = timings.with_projection(lines, projected, "seconds")
        sizes = [profile.small_batch if label == SMALL else profile.large_batch for label in shown["label"]]
        names = shown["label"].replace({SMALL: BASELINE.method})
        titles = [f"{name}, B = {size}" for name, size in zip(names, sizes, strict=True)]
        figure = worker_lines(shown.assign(label=titles), "Time of a run over workers", "seconds per run")
        figures.append(Drawing("", figure, f"Figure 5: scalability of the methods on {task}."))
        notes += timings.projection_note(projected)
    return Findings(
        tables=[Tabulation("", table, "Figure 5: seconds per run over workers.", notes)],
        figures=figures,
        claims=[judge(c14, rows)],
        found=_sentence(lines),
    )


def run_rows(profile: Profile, steps: DataFrame) -> DataFrame:
    """Return one row per line, number of workers, link and step: seconds of a run at that step's pace."""
    import pandas as pd

    epochs = int(profile.settings["epochs"])
    rows = steps[["label", "workers", "link", "step"]].assign(
        seconds=steps["seconds"] * steps["steps_per_epoch"] * epochs
    )
    keys = ["workers", "link", "step"]
    plain, noisy = (rows[rows["label"] == label].set_index(keys)["seconds"] for label in (LAMB.method, NO_DELAY))
    mixed = []
    for variant, delay in ((SCALA, profile.late_delay), (SCALA_EARLY, profile.early_delay)):
        share = min(delay / epochs, 1.0)
        mixture = (share * plain + (1 - share) * noisy).dropna()
        mixed.append(mixture.reset_index().assign(label=variant.method))
    return pd.concat([rows[rows["label"] != NO_DELAY], *mixed, rows[rows["label"] == NO_DELAY]], ignore_index=True)


def _sentence(lines: DataFrame) -> str:
    workers = lines["workers"].max()
    last, scala = lines[lines["workers"] == workers].set_index("label")["value"], SCALA.method
    if not {SMALL, scala, NO_DELAY} <= set(last.index):
        return ""
    return (
        f"On {workers:g} workers ScaLA's run takes 1/{last[SMALL] / last[scala]:.2f} of the small-batch baseline's "
        f"time, and without delay {last[NO_DELAY] / last[scala]:.2f}x as long."
    )


C14 = Claim(
    id="C14",
    source="Figure 5, Section 5",
    statement="All large-batch methods scale to 32 workers, and the delayed start of the noise saves most on 1 to 16.",
    paper="the four large-batch lines fall up to 32 workers, where they meet",
    rule=f"Per doubling of workers each large-batch line falls by a factor above {GAIN}; without delay over with delay "
    "(the later t_s) is larger on up to 16 workers than on 32, the smallest factor of interest 1.1. ScaLA with the "
    f"earlier t_s stands beside. The unit is the timed step; takes steps timed with {PAPER_WORKERS} workers.",
)


def c14(frame: DataFrame) -> ClaimRecord:
    """Judge the large-batch lines, and what the delay saves, by the rows of `run_rows` on one host."""
    parts = []
    for label in LINES:
        line = frame[frame["label"] == label]
        if not line.empty:
            gain = timings.gain_per_doubling(line, "seconds", sorted(set(line["workers"])))
            about, early = f"{label}: gain per doubling of workers", label == SCALA_EARLY.method
            parts.append(within(about, gain, GAIN, math.inf, contextual=early))
    if not parts:
        return record(C14, ())
    of_label = frame.pivot_table("seconds", ["step", "workers"], "label").reindex(columns=[NO_DELAY, SCALA.method])
    saved = (of_label[NO_DELAY] / of_label[SCALA.method]).unstack("workers")
    few = saved.drop(columns=PAPER_WORKERS, errors="ignore")  # their geometric mean, step by step, over that on 32
    timed = PAPER_WORKERS in saved and len(few.columns) > 0
    ratios = few.prod(axis=1, skipna=False) ** (1 / len(few.columns)) / saved[PAPER_WORKERS] if timed else []
    about = "what the delay saves on fewer workers, over that on 32"
    parts.append(effect(about, timings.factor_of(ratios), None, 1.1))
    return record(C14, parts, [timings.workers_gate(sorted(set(frame["workers"])), PAPER_WORKERS)])


STUDY = declare(
    __name__,
    title="Scalability of the methods",
    question="How does the time of a whole run fall with the number of workers for each method?",
    source="Figure 5",
    paper_found="BERT-base on SST-2: B=32 stops at 4 GPUs, all large-batch methods scale to 32, where they take about "
    "equally long; the delay saves most on 1 to 16.",
)
