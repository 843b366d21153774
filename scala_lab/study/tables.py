"""From rows of runs to tables as the paper prints them, with the notes that must stand below.

A table has a row per method and columns per task. "Avg." is the mean of all figures of a row as the paper counts
them: a task with accuracy and F1 enters twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scala_lab.study.statistics import mean_interval, tuned

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile


COLUMNS = {"steps": "steps", "train_seconds": "time (s)", "forward_passes": "passes", "score": "accuracy"}
"""Headings by the column of a run's row."""


def best_runs(frame: pd.DataFrame, by: Sequence[str] = ("model", "task", "method")) -> pd.DataFrame:
    """The runs at the best rate of each row and task, with `edge` and `grid_points`."""
    return tuned(frame, [name for name in by if name in frame.columns])


def table_by_task(
    frame: pd.DataFrame,
    best: pd.DataFrame,
    index: Sequence[str],
    tasks: Sequence[str],
    shown: Sequence[str] = ("score",),
) -> pd.DataFrame:
    """Means over seeds, a row per method, columns per task, the average and its 95% interval over seeds.

    Args:
        frame: All runs: they say which rows there are, and which ended without a number.
        best: The runs that the numbers come from.
        index: Columns that tell rows apart; they become the index.
        tasks: In the order of the columns.
        shown: What stands under each task, by the names of `COLUMNS`.
    """
    import pandas as pd

    rows = []
    for key, runs in frame.groupby(list(index), sort=False):
        chosen = best
        for name, value in zip(index, key, strict=True):
            chosen = chosen[chosen[name] == value]
        row: dict[str, Any] = dict(zip(index, key, strict=True))
        for task in tasks:
            row |= _task_figures(task, runs[runs["task"] == task], chosen[chosen["task"] == task], shown)
        rows.append(row | _average(chosen, tasks))
    return pd.DataFrame(rows).set_index(list(index))


def _task_figures(task: str, runs: pd.DataFrame, chosen: pd.DataFrame, shown: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in shown:
        nothing: Any = "diverged" if name == "score" and (runs["status"] == "diverged").any() else math.nan
        found[f"{task} {COLUMNS[name]}"] = float(chosen[name].mean()) if len(chosen) else nothing
    if len(chosen) and chosen["f1"].notna().any():
        found[f"{task} F1"] = float(chosen["f1"].mean())
    return found


def _average(chosen: pd.DataFrame, tasks: Sequence[str]) -> dict[str, float]:
    """Mean over tasks of each seed's figures, then over seeds."""
    per_seed = []
    for _, runs in chosen.groupby("seed"):
        if set(tasks) <= set(runs["task"]):
            per_seed.append(mean_interval([*runs["score"], *runs["f1"].dropna()]).value)
    mean = mean_interval(per_seed)
    return {"Avg.": mean.value, "±": mean.high - mean.value if mean.decided else math.nan}


def short(values: pd.Series) -> pd.Series:
    """Numbers of two significant digits, for columns that span decades."""
    return values.map(lambda value: float(f"{value:.2g}"))


def budget_note(profile: Profile, best: pd.DataFrame, epochs: int | None = None) -> str:
    """Epochs, samples and forward passes behind each row of a table."""
    passes = best.groupby("method", sort=False)["forward_passes"].mean()
    listed = "; ".join(f"{method}: {value:.3g}" for method, value in passes.items())
    return (
        f"Budget: {epochs or profile.settings['epochs']} epochs; forward passes over the training rows, a backward "
        f"counted as two, {listed}."
    )


def grid_note(best: pd.DataFrame, by: Sequence[str] = ("method", "task")) -> str:
    """How many rates each row was tuned on, and where the best one ends its grid."""
    points = sorted({int(count) for count in best["grid_points"]})
    if not points:
        return "No row has a finished run."
    if points == [1]:
        return "Every row runs at one rate, the middle of its grid in the main tables: none is tuned here."
    counted = " or ".join(map(str, points))
    edge = best[best["edge"]]
    if edge.empty:
        return f"Each row at the best of {counted} rates; no best rate ends its grid."
    keys = [name for name in by if name in edge.columns]
    places = edge[[*keys, "rate"]].drop_duplicates().to_dict("records")
    words = {"batch_size": "B={}"}
    listed = "; ".join(
        f"{' '.join(words.get(key, '{}').format(row[key]) for key in keys)} at {row['rate']:g}" for row in places
    )
    return f"Each row at the best of {counted} rates. The best one ends its grid, a better may lie beyond: {listed}."


def status_note(frame: pd.DataFrame) -> list[str]:
    """A sentence on runs that did not finish, if there are any."""
    counts = frame.drop_duplicates("id")["status"].value_counts()
    ended = ", ".join(f"{count} {status}" for status, count in counts.items() if status != "finished")
    return [f"Of {int(counts.sum())} runs, {ended}."] if ended else []


def time_note(profile: Profile) -> str:
    """What the seconds in a table are."""
    workers = int(profile.settings.get("workers", 1))
    return (
        f"Times are seconds of training on {workers} worker{'s' * (workers != 1)}, taken while other runs share the "
        "machine; forward passes do not depend on that."
    )


def notes(profile: Profile, frame: pd.DataFrame, best: pd.DataFrame, *, timed: bool = False) -> list[str]:
    """All notes of a table: budget, grid, what did not finish, and what its times are."""
    seeds = len(set(best["seed"]))
    means = f"Means over {seeds} seeds, ± half of the average's 95% interval." if seeds > 1 else "One seed."
    found = [f"{means} {grid_note(best)}", *status_note(frame)]
    if len(best):
        found.insert(1, budget_note(profile, best))
    return [*found, time_note(profile)] if timed else found
