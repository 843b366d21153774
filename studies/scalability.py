"""How the time of an epoch falls with the number of workers, at a small and a large batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.claims.scaling import LARGE, SMALL, c1, c2
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.rows import BASELINE
from studies._timings import STEPS, WARMUP, medians, step_cell, step_rows

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile


def cells(profile: Profile) -> list[Cell]:
    """The baseline at both batch sizes, for every number of workers of the profile."""
    return [
        step_cell(profile, BASELINE.named(label), profile.pair[0], batch_size, workers)
        for label, batch_size in ((SMALL, profile.small_batch), (LARGE, profile.large_batch))
        for workers in profile.workers
        if workers <= batch_size
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Lines over workers with and without communication."""
    from scala_lab.report.timing_figures import worker_lines

    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    rows = epoch_rows(done)
    lines = figure_rows(rows, done)
    task = done["task"].iloc[0]
    notes = [
        f"Medians of {STEPS} steps after {WARMUP} of warm-up, times the steps of an epoch over the same rows; "
        f"{task}, one process per worker on this machine.",
        "Without communication: the step less what the first worker spent in the all-reduce, which nothing overlaps.",
    ]
    table = epoch_table(rows, done)
    speedups = [
        f"{label} {group['speedup'].iloc[-1]:.2f}x on {group['workers'].iloc[-1]:g} workers"
        for label, group in table.groupby("batch", sort=False)
    ]
    return Findings(
        tables=[Tabulation("", table, "Figure 1(a): seconds per epoch over workers.", notes)],
        figures=[
            Drawing(
                "",
                worker_lines(lines, "Time per epoch over workers, with and without communication"),
                f"Figure 1(a): scalability on {task}.",
            )
        ],
        claims=[c1(rows), c2(rows)],
        found=f"Speedup over one worker: {', '.join(speedups)}.",
    )


def epoch_rows(done: pd.DataFrame) -> pd.DataFrame:
    """One row per batch size, number of workers and step: seconds of an epoch at that step's pace."""
    import pandas as pd

    rows = [
        {"label": cell["method"], "workers": cell["workers"], "step": row["step"]}
        | {name: row[name] * cell["steps_per_epoch"] for name in ("seconds", "without")}
        for cell in done.to_dict("records")
        for row in step_rows(cell)
    ]
    return pd.DataFrame(rows, columns=["label", "workers", "step", "seconds", "without"])


def figure_rows(rows: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """The four lines of the figure: both batch sizes, with and without communication."""
    import pandas as pd

    sizes = done.drop_duplicates("method").set_index("method")["batch_size"]
    parts = []
    for value, suffix in (("seconds", ""), ("without", " (no communication)")):
        part = medians(rows, ["label", "workers"], value)
        parts.append(part.assign(label=[f"B = {sizes[label]}{suffix}" for label in part["label"]]))
    return pd.concat(parts, ignore_index=True)


def epoch_table(rows: pd.DataFrame, done: pd.DataFrame) -> pd.DataFrame:
    """One row per batch size and number of workers."""
    sizes = done.drop_duplicates("method").set_index("method")["batch_size"]
    table = medians(rows, ["label", "workers"], "seconds").rename(columns={"value": "seconds per epoch"})
    without = medians(rows, ["label", "workers"], "without")["value"]
    table = table.assign(without=without, B=[sizes[label] for label in table["label"]])
    first = table.groupby("label")["seconds per epoch"].transform("first")
    table["speedup"] = first / table["seconds per epoch"]
    table["efficiency"] = table["speedup"] / (table["workers"] / table.groupby("label")["workers"].transform("first"))
    table = table.rename(columns={"label": "batch", "without": "without communication"})
    kept = ["batch", "B", "workers", "seconds per epoch", "low", "high", "without communication"]
    return table[[*kept, "speedup", "efficiency"]]


STUDY = Study(
    name="scalability",
    title="Scalability",
    question="Does more workers mean less time, at a small and at a large batch size?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(a)",
    paper_found="BERT-base on MNLI: at B=32 time falls up to 4 GPUs and no further, because communication dominates; "
    "at B=1K it falls up to 32.",
)

if __name__ == "__main__":
    from scala_lab.study.discovery import main

    raise SystemExit(main(STUDY))
