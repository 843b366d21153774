"""Table 1: how much faster is ScaLA with large batches than the small-batch baseline, and is it as accurate?

Accuracy comes from tuned runs. All times come from timed steps of every task with nothing else on the machine: a run on
P workers is made of plain steps up to ScaLA's delay and of steps with noise after it. Where this machine has too few
cores they are projected from a calibration, which decides nothing.
"""

import math
from collections.abc import Iterator
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np

from scala_lab.study import Cell, DataFrame, Findings, Profile, Tabulation, declare, variants
from scala_lab.study.gates import Gate, accuracy_gates
from scala_lab.study.statistics import FACTOR, Estimate, contrast, paired_difference
from scala_lab.study.tables import data_frame, notes, table_by_task
from scala_lab.study.variants import EFFECTIVE, LAMB, SCALA, SCALA_OTHER, SCALA_TUNED, SMALL_BATCH, arm_cells
from scala_lab.study.verdicts import EQUAL, SLACK, Claim, ClaimRecord, effect, judge, no_worse, record, within
from scala_lab.timing.calibration import WITHIN, Calibration
from scala_lab.timing.model import even_load
from studies import _paper_tables as paper
from studies import _timings as timings
from studies._timings import PAPER_WORKERS, RATES

INDEX = ("model", "method", "batch_size")
TIMES, CONSTANTS, SECONDS = "times of steps", "constants", "seconds of a run"
"""Kinds of cells that are not training runs, and of the rows that `run_times` makes of them."""
STEPS, WARMUP = 4, 1  # steps of each kind on each task: there are many kinds
MEASURED, PROJECTED = "measured", "projected"
TIMES_NOTE = (
    f"Medians of {STEPS} steps after {WARMUP} of warm-up, of every kind on every task with nothing else on the "
    "machine, times the steps of a run. ScaLA's are plain steps up to its delay and steps with noise after it."
)
PROJECTION_NOTE = (
    f"Projected to {PAPER_WORKERS} workers, on hosts like this one joined by links of {RATES[0]}, by the model of time "
    "that the study of projection holds against measured steps."
)
FASTER = paper.speedups("baseline 2x16", "ScaLA B=1K")
OVER_ONE = paper.speedups("baseline 1x1", "ScaLA B=1K")
BASELINE_GAINS = paper.speedups("baseline 1x1", "baseline 2x16")  # factors between rows of Table 1, per model and task
TASK_NAMES = {"mnli": "MNLI-m", "qnli": "QNLI", "qqp": "QQP", "sst2": "SST-2"}
MODELS = {paper.BERT: "bert-base-uncased", paper.ROBERTA: "roberta-large"}

C9 = Claim(
    id="C9",
    statement="ScaLA with large batches is 2.7 to 9.8 times faster than the small-batch baseline on the same workers, "
    "at equal average accuracy.",
    paper="2.7-9.8x on 32 GPUs; average 89.4 against 89.4 (BERT), 92.9 against 92.5 (RoBERTa)",
    rule=f"ScaLA's accuracy minus the small-batch baseline's is not below -{EQUAL} points. On {PAPER_WORKERS} workers "
    f"the baseline's time over ScaLA's lies within {2.7 / SLACK:.3g} to {9.8 * SLACK:.3g}, from timed steps, which are "
    "the unit; on fewer workers, where there is less communication to save, it is shown. ScaLA has the t_s that is "
    "better on tuning rows.",
)
C23 = Claim(
    id="C23",
    statement="ScaLA with large batches on 32 workers is up to 18 times faster than the small-batch baseline on one.",
    paper=f"{min(OVER_ONE):.1f} to {max(OVER_ONE):.1f}x by model and task, on average {geometric_mean(OVER_ONE):.1f}",
    rule=f"The time of the baseline on one worker over ScaLA's on {PAPER_WORKERS}, geometric mean over models and "
    "tasks, is a factor at least as large as the root of the paper's, which is half of it on the log scale.",
)
C24 = Claim(
    id="C24",
    statement="With small batches 32 workers are only 1.5 to 2.4 times faster than one.",
    paper=f"1.5-2.4x in the text; its table has {min(BASELINE_GAINS):.1f} to {max(BASELINE_GAINS):.1f}",
    rule=f"The baseline's time on one worker over that on {PAPER_WORKERS}, geometric mean over models and tasks, lies "
    f"within {1.5 / SLACK:.3g} to {2.4 * SLACK:.3g}.",
)
C26 = Claim(
    id="C26",
    statement="On RoBERTa-large ScaLA with large batches is more accurate than the small-batch baseline, and the "
    "small-batch baselines of both encoders reach the accuracies published with them.",
    paper="92.9 against 92.5; BERT-base 84.8, 90.6, 93.1 against 84.4, 88.4, 92.7 (MNLI, QNLI, SST-2); RoBERTa-large "
    "90.5, 94.7, 92.0, 96.4 against 90.2, 94.7, 92.2, 96.4 (with QQP)",
    rule="ScaLA minus the small-batch baseline on RoBERTa-large is above 0, and not below half of the paper's 0.4 "
    f"points; each baseline minus the published accuracies, on dev, is not below -{EQUAL} points on average.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the small-batch baseline and ScaLA at the large batch size, for every model; and times of their steps."""
    small, large = profile.small_batch, profile.large_batch
    runs = arm_cells(profile, SMALL_BATCH, small, models=profile.models)
    runs += arm_cells(profile, (SCALA_TUNED, SCALA_OTHER, EFFECTIVE), large, models=profile.models)
    kinds = [(SMALL_BATCH, small), (LAMB, large)]
    kinds += [(row.but(f"{row.method} with noise", delay=0.0), large) for row in (SCALA, EFFECTIVE)]
    times = []
    for model in profile.models:
        specs = {
            f"{task} {row.method}": timings.first_steps(profile, row, task, size, model)
            for task in profile.tasks
            for row, size in kinds
        }
        for workers in sorted({1, max(profile.workers)}):
            measurement = timings.timed_steps(profile, specs, workers, STEPS, WARMUP)
            times.append(Cell(measurement, kind=TIMES, model=model, workers=workers))
    if profile.settings.get("device") != "cuda":
        times.append(Cell(timings.machine_constants(profile), kind=CONSTANTS))
    return runs + times


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare steps, time and accuracy."""
    import pandas as pd

    runs = frame[frame["kind"].isna()].astype({"seed": int})
    times = run_times(profile, frame[(frame["status"] == "finished") & ~frame["kind"].isna()])
    timed = times[times["times"] == MEASURED]
    judged = pd.concat([runs, timed], ignore_index=True) if len(timed) else runs.assign(step=math.nan, seconds=math.nan)
    claims = [judge(rule, judged, profile.level) for rule in (c9, c23, c24, c26)]
    accuracy, *_, speed = claims[0].parts
    small, large, against = profile.small_batch, profile.large_batch, SMALL_BATCH.method
    steps = "Table 1: the paper's steps beside those of six epochs."
    tables = [
        Tabulation(
            "",
            table_by_task(runs, INDEX, profile.tasks, ("steps", "score", "dev"), against=against, level=profile.level),
            f"Table 1: steps and accuracy (%) of the baseline at B={small} and of ScaLA at B={large}.",
            [
                *notes(profile, runs, against=against),
                "Steps and accuracy do not depend on the number of workers, but for rounding.",
            ],
        ),
        paper.paper_table(1),
        Tabulation("steps", paper.read_table("steps"), steps, [paper.STEPS_NOTE]),
    ]
    if len(times):
        caption = "Table 1: seconds of a run over workers, measured or projected."
        time_notes = [TIMES_NOTE, *([PROJECTION_NOTE] if PROJECTED in set(times["times"]) else [])]
        tables.insert(1, Tabulation("times", time_table(profile, times), caption, time_notes))
    found = f"ScaLA at B={large} differs from the baseline at B={small} by {accuracy.estimate}; "
    return Findings(tables, (), claims, f"{found}{speed.statement}: {speed.estimate}.")


def run_times(profile: Profile, done: DataFrame) -> DataFrame:
    """Return seconds of a run by model, task, method and number of workers, from each timed step or projected."""
    constants = [Calibration.from_dict(cell) for cell in done[done["kind"] == CONSTANTS].to_dict("records")]
    rows: list[tuple[Any, ...]] = []
    for cell in timings.measured(done[done["kind"] == TIMES]).to_dict("records"):
        for labels, plain, noisy, share in _mixtures(profile, cell):
            steps = profile.settings["epochs"] * cell[f"{plain}:steps_per_epoch"]
            seconds = (1 - share) * np.asarray(cell[f"{plain}:step"]) + share * np.asarray(cell[f"{noisy}:step"])
            place = (SECONDS, *labels, int(cell["workers"]), MEASURED)
            rows += [(*place, index, value) for index, value in enumerate((steps * seconds).tolist())]
        alone = cell["workers"] == 1 and cell["model"] == profile.models[0]
        if constants and alone and max(profile.workers) < PAPER_WORKERS:
            rows += _projected_rows(profile, cell, constants[0])
    columns = ["kind", "model", "task", "method", "batch_size", "workers", "times", "step", "seconds"]
    return data_frame(rows, columns)


def _mixtures(profile: Profile, cell: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str, int], str, str, float]]:
    """Yield each run's labels, the names of its plain steps and of those with noise, and the share of the latter."""
    model, small, large = cell["model"], profile.small_batch, profile.large_batch
    for task in profile.tasks:
        plain = f"{task} {SMALL_BATCH.method}"
        yield (model, task, SMALL_BATCH.method, small), plain, plain, 0.0
        for row in (SCALA_TUNED, SCALA_OTHER, EFFECTIVE):
            settings, _ = variants.tuned_settings(profile, row, large, task, model)
            noisy = f"{task} {(EFFECTIVE if row is EFFECTIVE else SCALA).method} with noise"
            share = max(0.0, 1 - settings["delay"] / profile.settings["epochs"])
            yield (model, task, row.method, large), f"{task} {LAMB.method}", noisy, share


def _projected_rows(profile: Profile, cell: dict[str, Any], constants: Calibration) -> Iterator[tuple[Any, ...]]:
    """Project the baseline and ScaLA as the paper has it: the calibration knows no other kind of noise."""
    model = constants.model(RATES[0] if RATES[0] in constants.links else WITHIN, constants.cores)
    micro_batch = int(profile.settings.get("micro_batch", 64))
    for labels, plain, _, share in _mixtures(profile, cell):
        *_, method, size = labels
        if method == EFFECTIVE.method or size < PAPER_WORKERS:
            continue
        length = float(np.sum(cell[f"{plain}:tokens"]) / np.sum(cell[f"{plain}:samples"]))
        optimizer = "adamw" if method == SMALL_BATCH.method else "lamb"
        load = even_load(size, PAPER_WORKERS, micro_batch, length)
        seconds = model.step_seconds(load, PAPER_WORKERS, optimizer, noise=share)
        steps = profile.settings["epochs"] * cell[f"{plain}:steps_per_epoch"]
        yield SECONDS, *labels, PAPER_WORKERS, PROJECTED, 0, steps * seconds


def time_table(profile: Profile, times: DataFrame) -> DataFrame:
    """Return seconds by task, and the geometric mean of how many times faster than the baseline on as many workers."""
    keys = ["model", "method", "batch_size", "workers", "times"]
    table = times.pivot_table("seconds", keys, "task", aggfunc="median", sort=False)[list(profile.tasks)]
    baseline = table.xs(SMALL_BATCH.method, level="method").droplevel("batch_size")
    ratios = np.log(baseline.loc[[(model, workers, kind) for model, _, _, workers, kind in table.index]].to_numpy())
    faster = np.exp((ratios - np.log(table.to_numpy())).mean(axis=1))
    table = table.rename(columns=lambda task: f"{task} time (s)").rename_axis(index={"batch_size": "batch size"})
    return table.assign(**{"times faster than baseline": faster})


def time_factor(frame: DataFrame, slow: tuple[str, int], fast: tuple[str, int]) -> Estimate:
    """Return how many times faster one method on some workers is than another, step by step; no value if not timed."""
    timed = frame[frame["kind"] == SECONDS].copy()
    timed = timed.assign(place=list(zip(timed["method"], timed["workers"], strict=True)), seed=timed["step"])
    if not {slow, fast} <= set(timed["place"]):
        return timings.factor_of([])
    weights = {slow: 1.0, fast: -1.0}
    return contrast(timed, weights, value="seconds", column="place", unit=FACTOR, counts=timings.TIMED_STEPS)


def timed_workers(frame: DataFrame) -> list[int]:
    """Return the numbers of workers that steps were timed with."""
    return sorted({int(count) for count in frame[frame["kind"] == SECONDS]["workers"]})


def c9(frame: DataFrame) -> ClaimRecord:
    """Judge the baseline (small batch) and ScaLA (large batch): accuracy of runs, and times on as many workers."""
    runs, scala, other = frame[frame["kind"].isna()], SCALA_TUNED.method, SCALA_OTHER.method
    small, minus = SMALL_BATCH.method, partial(paired_difference, runs)
    parts = [
        no_worse("accuracy of ScaLA minus the baseline", minus(scala, small), EQUAL, paper=0.0),
        no_worse(f"accuracy of {other} minus the baseline", minus(other, small), EQUAL, contextual=True),
    ]
    for workers in sorted({max(timed_workers(frame), default=1), PAPER_WORKERS}, reverse=True):
        factor = time_factor(frame, (small, workers), (scala, workers))
        name = f"time of the baseline over ScaLA's on {workers} worker{'s' * (workers != 1)}"
        few = workers < PAPER_WORKERS
        printed = None if few else geometric_mean(FASTER)
        parts.append(within(name, factor, 2.7 / SLACK, 9.8 * SLACK, paper=printed, contextual=few, gated=False))
    return record(C9, parts, accuracy_gates(runs, (small, scala)))


def c23(frame: DataFrame) -> ClaimRecord:
    """Compare the time of ScaLA on many workers with that of the small batch on one."""
    factor = time_factor(frame, (SMALL_BATCH.method, 1), (SCALA_TUNED.method, PAPER_WORKERS))
    name = f"time of the baseline on one worker over ScaLA's on {PAPER_WORKERS}"
    part = effect(name, factor, geometric_mean(OVER_ONE))
    return record(C23, [part], [timings.workers_gate(timed_workers(frame), PAPER_WORKERS)])


def c24(frame: DataFrame) -> ClaimRecord:
    """Compare the time of the small batch on many workers with that on one."""
    factor = time_factor(frame, (SMALL_BATCH.method, 1), (SMALL_BATCH.method, PAPER_WORKERS))
    name = f"baseline's time on one worker over that on {PAPER_WORKERS}"
    part = within(name, factor, 1.5 / SLACK, 2.4 * SLACK, paper=geometric_mean(BASELINE_GAINS))
    return record(C24, [part], [timings.workers_gate(timed_workers(frame), PAPER_WORKERS)])


def c26(frame: DataFrame) -> ClaimRecord:
    """Compare ScaLA with the small batch on RoBERTa-large, and the small batch with published accuracies."""
    runs, scala, small = frame[frame["kind"].isna()], SCALA_TUNED.method, SMALL_BATCH.method
    gain = paired_difference(runs[runs["model"] == MODELS[paper.ROBERTA]], scala, small)
    parts = [effect("RoBERTa-large: ScaLA minus the baseline", gain, 0.4)]
    for name, printed in ((paper.BERT, 1.0), (paper.ROBERTA, 0.1)):
        of_model = runs[(runs["model"] == MODELS[name]) & (runs["method"] == small)]
        known = of_model["task"].map(TASK_NAMES).map(paper.published(name)).astype(float)
        above = contrast(of_model.assign(dev=of_model["dev"] - known), {small: 1.0}, value="dev")
        parts.append(no_worse(f"{name}: baseline minus published", above, EQUAL, paper=printed))
    there = set(zip(runs["model"], runs["task"], strict=True))
    lost = [f"{model} on {task}" for model in MODELS.values() for task in TASK_NAMES if (model, task) not in there]
    remedy = "the paper profile: BERT-base and RoBERTa-large on all of GLUE, on a cluster with GPUs"
    found = f"not part of these runs: {', '.join(lost)}" if lost else "both encoders on all four tasks"
    gates = [Gate("encoders", not lost, found, remedy), *accuracy_gates(runs, (small, scala))]
    return record(C26, parts, gates)


STUDY = declare(
    __name__,
    title="Adaptation time and accuracy",
    question="How much faster is ScaLA with large batches than the small-batch baseline, and is it as accurate?",
    source="Table 1",
    paper_found="On 32 GPUs ScaLA at B=1K is 2.7 to 9.8 times faster than the baseline at B=32, with the same average "
    "for BERT-base (89.4; the text once says 88.4) and a higher one for RoBERTa-large (92.9 against 92.5).",
)
