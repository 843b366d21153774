"""A small model of time, compared with runs that it has not seen: on this machine, and in the paper's tables.

Here its constants come from a calibration that times no run, and the runs of the studies of scalability test it. For
the paper's tables they are fitted on two tasks, and the other two test it. What lies beyond either is projected, and
marked so.
"""

import numpy as np

from scala_lab.report.figures.timing import worker_lines
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.tables import data_frame
from scala_lab.sweep.cells import Measurement
from scala_lab.timing.calibration import WITHIN, Calibration
from scala_lab.timing.model import Workload, best_workers, epoch_seconds
from scala_lab.timing.paper_times import PARAMETERS, paper_projection
from studies import method_scalability, scalability
from studies._timings import BAND, constants_of, error_factors, heldout_rows, measured

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LARGE_BATCH = 1024
MAX_ERROR = 1.5
"""A cell whose predicted time is off by more than this factor is named as one that the model does not explain."""
PAPER, HERE = "paper", "here"
"""Kinds of cells: a fit to the paper's tables; the calibration of this machine and runs that it has not seen."""
PAPER_CAPTION = "Projected seconds per epoch of MNLI; reported are 1 and 32 workers at B=32 and 32 at B=1K."
ASSUMED = (
    "The tables cannot tell what an exchange takes on two workers from what it takes on 16: one kind of link stands "
    "for all, as a ring, at an assumed 20 µs per round. Crowding, what computing takes longer by on 32, is taken "
    "for any number of workers above one."
)


def cells(profile: Profile) -> list[Cell]:
    """Return a fit per model of the paper, a calibration of this machine, and the timings of both scalabilities."""
    fits = [
        Cell(Measurement(paper_projection, settings={"model": model, "workers": WORKERS}), kind=PAPER, model=model)
        for model in PARAMETERS
    ]
    if profile.settings.get("device") == "cuda":
        return fits
    timed = {cell.key: cell for cell in (*scalability.cells(profile), *method_scalability.cells(profile))}
    return [*fits, *(Cell(cell.item, kind=HERE, **cell.labels) for cell in timed.values())]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare predictions with what was measured here and with what the paper reports, and project to more workers."""
    done = frame[frame["status"] == "finished"]
    here, paper = (done[done["kind"] == kind] for kind in (HERE, PAPER))
    parts = [*([_here(profile, here)] if len(here) else []), *([_paper(paper)] if len(paper) else [])]
    return Findings(
        tables=[table for part in parts for table in part.tables],
        figures=[figure for part in parts for figure in part.figures],
        found=" ".join(part.found for part in parts if part.found),
    )


def _here(profile: Profile, done: DataFrame) -> Findings:
    """Predict every timed cell of this machine from its calibration, which has seen none of them."""
    constants, rows = constants_of(done), heldout_rows(done)
    if constants is None or rows.empty:
        return Findings()
    error = 100 * (error_factors(rows) - 1)
    runs, ninety = measured(done), error.quantile(BAND, "higher")
    lines, best = own_projection(profile, constants, runs)
    notes = [
        "Predicted from a calibration of about a minute that times made-up batches, updates and messages, and no run. "
        "Measured: medians of the studies of scalability.",
        f"Median error {np.median(error):.0f}%, {100 * BAND:.0f}% of cells within {ninety:.0f}%, largest "
        f"{error.max():.0f}%.",
    ]
    caption = (
        f"Projected seconds per 100,000 rows of {profile.pair[0]} on hosts like this one, {constants.cores} workers "
        "on each; measured are 1 and 2 workers."
    )
    figure = worker_lines(lines, "Projected time on more hosts", "seconds per 100,000 rows")
    return Findings(
        tables=[
            Tabulation("here", rows, "Steps of runs on this machine, predicted and measured.", notes),
            Tabulation("calibration", constant_table(constants), "Constants of this machine."),
            Tabulation("here-workers", lines.pivot_table("value", "label", "workers", sort=False), caption, best),
        ],
        figures=[Drawing("here", figure, caption)],
        found=f"On this machine the model predicts {len(rows)} cells that it has not seen with a median error of "
        f"{np.median(error):.0f}%, {100 * BAND:.0f}% of them within {ninety:.0f}%.",
    )


def own_projection(profile: Profile, constants: Calibration, runs: DataFrame) -> tuple[DataFrame, list[str]]:
    """Return lines over workers for each calibrated link between hosts, and notes on the best number of workers."""
    cell = runs.sort_values("task", key=lambda tasks: tasks != profile.pair[0], kind="stable").iloc[0].to_dict()
    label = next(iter(cell["sizes"]))
    length = float(np.sum(cell[f"{label}:tokens"]) / np.sum(cell[f"{label}:samples"]))
    work = Workload(100_000, length, int(profile.settings.get("micro_batch", 64)), "adamw")
    rows, notes = [], []
    for link in constants.links:
        model = constants.model(link, constants.cores)
        for batch_size in dict.fromkeys((profile.small_batch, LARGE_BATCH)):
            label = f"B = {batch_size}, {'links as within a host' if link == WITHIN else link}"
            rows += [
                {"label": label, "workers": workers, "value": epoch_seconds(model, work, batch_size, workers)}
                for workers in WORKERS
                if workers <= batch_size
            ]
            notes.append(f"{label}: shortest on {best_workers(model, work, batch_size, WORKERS)} workers.")
    return data_frame(rows), notes


def constant_table(constants: Calibration) -> DataFrame:
    """Return the constants by name, in units that read well."""
    rows = [
        (f"{kind} step: {name}", value, unit)
        for kind, computing in (("plain", constants.plain), ("noisy", constants.noise))
        for name, value, unit in (
            ("a step", 1e3 * computing.per_step, "ms"),
            ("a micro-batch", 1e3 * computing.per_micro_batch, "ms"),
            ("a row", 1e6 * computing.per_row, "µs"),
            ("a token", 1e6 * computing.per_token, "µs"),
            ("a squared length", 1e9 * computing.per_square, "ns"),
        )
    ]
    rows += [(f"update by {name}", 1e3 * seconds, "ms") for name, seconds in constants.update.items()]
    rows += [("computing on all cores over alone", constants.crowding, "")]
    rows += [("an update on all cores over alone", constants.update_crowding, "")]
    for name, link in constants.links.items():
        rows += [(f"latency, {name}", 1e6 * link.latency, "µs"), (f"bandwidth, {name}", link.bandwidth / 1e6, "MB/s")]
    return data_frame([(name, f"{value:.3g}", unit) for name, value, unit in rows], ["constant", "value", "unit"])


def _paper(done: DataFrame) -> Findings:
    """Fit the paper's tables: residuals of all reported cells, constants, and lines over workers."""
    residuals = data_frame(
        {"model": fit["model"], "row": row, "task": task, "fitted on": "yes" if used else "no"}
        | {"reported": reported, "fitted": fitted, "fitted / reported": fitted / reported}
        for fit in done.to_dict("records")
        for row, task, used, reported, fitted in zip(
            *(fit[name] for name in ("row", "task", "used", "reported", "fitted")), strict=True
        )
    )
    off = np.exp(np.abs(np.log(residuals["fitted / reported"])))
    odd, unseen = residuals[off > MAX_ERROR], residuals["fitted on"] == "no"
    names = ", ".join(f"{row['model']} {row['task']} {row['row']}" for row in odd.to_dict("records"))
    notes = [
        "Fitted on MNLI and SST-2: what a step, a row and a token cost, how much more on 32 workers, an exchange, "
        "LAMB's extra time and what noise adds over a run. QNLI and QQP are predicted.",
        f"Not explained within a factor of {MAX_ERROR}: {names or 'none'}."
        + (" On QQP with large batches BERT-base is reported slower than RoBERTa-large." if len(odd) else ""),
    ]
    constants = done[["model", "step", "row of a batch", "token", "crowding", "exchange", "LAMB", "noise"]]
    lines = data_frame(
        {"label": f"{fit['model']}, B = {batch}", "workers": workers, "value": seconds}
        for fit in done.to_dict("records")
        for batch in (32, 1024)
        for workers, seconds in zip(fit["projected_workers"], fit[f"projected_{batch}"], strict=True)
        if seconds is not None
    )
    by_workers = lines.pivot_table("value", "label", "workers", sort=False)
    return Findings(
        tables=[
            Tabulation("", residuals, "Tables 1 and 2: reported seconds of a step beside the model's.", notes),
            Tabulation("constants", constants, "Fitted constants: seconds and factors."),
            Tabulation("workers", by_workers, PAPER_CAPTION, [ASSUMED]),
        ],
        figures=[Drawing("", worker_lines(lines, "Projected time per epoch of MNLI"), PAPER_CAPTION)],
        found=f"Fitted on two of the paper's tasks it predicts the {unseen.sum()} reported cells of the other two with "
        f"a median error of {100 * (np.median(off[unseen]) - 1):.0f}%; {len(odd)} of all {len(off)} cells are off by "
        f"more than {MAX_ERROR}x.",
    )


STUDY = declare(
    __name__,
    title="Projection",
    question="Does one small model of time predict runs that it has not seen, and what does it say of more workers?",
)
