"""From the rows of runs to tables as the paper prints them, with the notes below them.

A table has a row per method and columns per task. "Avg." is the mean of all figures of a row as the paper counts
them: a task with accuracy and F1 enters twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scala_lab.study.statistics import mean_interval

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

HEADINGS = {
    "steps": "steps",
    "train_seconds": "time (s)",
    "forward_passes": "passes",
    "score": "accuracy",
    "best_score": "best epoch's accuracy",
    "noise_start": "noise from epoch",
    "divergence": "divergence r",
}
"""Headings of a table by the column of a run's row."""


def best_runs(frame: pd.DataFrame, by: Sequence[str] = ("model", "task", "method")) -> pd.DataFrame:
    """Return the runs at each group's best rate, with columns `edge` and `grid_points`.

    The best rate has the highest mean score over seeds; a rate at which any seed diverged is never the best. `edge`
    says whether it is the first or last of its `grid_points` rates; a grid of one rate has no edge. Columns of `by`
    that the frame lacks are left out.
    """
    import pandas as pd

    best = []
    for _, group in frame.groupby([name for name in by if name in frame.columns], sort=False):
        means = group.groupby("rate")["score"].apply(lambda values: values.mean(skipna=False))
        if means.notna().any():
            rate, grid = means.idxmax(), sorted(means.index)
            edge = len(grid) > 1 and rate in (grid[0], grid[-1])
            best.append(group[group["rate"] == rate].assign(edge=edge, grid_points=len(grid)))
    return pd.concat(best) if best else frame.iloc[:0].assign(edge=False, grid_points=0)


def table_by_task(
    frame: pd.DataFrame,
    best: pd.DataFrame,
    index: Sequence[str],
    tasks: Sequence[str],
    shown: Sequence[str] = ("score",),
) -> pd.DataFrame:
    """Return means over seeds: a row per value of `index`, `shown` per task, the average and its 95% interval.

    `frame` has all runs and says which rows there are and which of them diverged; the numbers come from `best`.
    """
    import pandas as pd

    rows = []
    for key, runs in frame.groupby(list(index), sort=False):
        row: dict[str, Any] = dict(zip(index, key, strict=True))
        chosen = best
        for name, value in row.items():
            chosen = chosen[chosen[name] == value]
        for task in tasks:
            row |= _task_means(task, runs[runs["task"] == task], chosen[chosen["task"] == task], shown)
        rows.append(row | _average(chosen, tasks))
    return pd.DataFrame(rows).set_index(list(index)).rename_axis([name.replace("_", " ") for name in index])


def _task_means(task: str, runs: pd.DataFrame, chosen: pd.DataFrame, shown: Sequence[str]) -> dict[str, Any]:
    means: dict[str, Any] = {}
    for name in shown:
        nothing: Any = "diverged" if name == "score" and (runs["status"] == "diverged").any() else math.nan
        means[f"{task} {HEADINGS[name]}"] = float(chosen[name].mean()) if len(chosen) else nothing
    if len(chosen) and chosen["f1"].notna().any():
        means[f"{task} F1"] = float(chosen["f1"].mean())
    return means


def _average(chosen: pd.DataFrame, tasks: Sequence[str]) -> dict[str, float]:
    """Return the mean over tasks of each seed's figures, then over the seeds that have all tasks."""
    per_seed = [
        mean_interval([*runs["score"], *runs["f1"].dropna()]).value
        for _, runs in chosen.groupby("seed")
        if set(tasks) <= set(runs["task"])
    ]
    mean = mean_interval(per_seed)
    return {"Avg.": mean.value, "±": mean.high - mean.value if mean.decided else math.nan}


def means_by(best: pd.DataFrame, keys: Sequence[str], shown: Iterable[str]) -> pd.DataFrame:
    """Return the means of some columns over the runs of each group, under their headings."""
    return best.groupby(list(keys), sort=False)[list(shown)].mean().rename(columns=HEADINGS)


def panel_rows(best: pd.DataFrame, panels: Mapping[str, str]) -> pd.DataFrame:
    """Return the runs once per panel of a figure, with columns `panel`, its title, and `value`, that of its column."""
    import pandas as pd

    return pd.concat([best.assign(panel=title, value=best[column]) for title, column in panels.items()])


def two_digits(values: pd.Series) -> pd.Series:
    """Round to two significant digits, for columns that span decades."""
    return values.map(lambda value: float(f"{value:.2g}"))


def notes(profile: Profile, frame: pd.DataFrame, best: pd.DataFrame, *, timed: bool = False) -> list[str]:
    """Return the notes of a table: seeds and grids, budget, runs that did not finish, and, if timed, what times are."""
    seeds = len(set(best["seed"]))
    means = f"Means over {seeds} seeds, ± half of the average's 95% interval." if seeds > 1 else "One seed."
    listed = [f"{means} {grid_note(best)}"]
    if len(best):
        passes = best.groupby("method", sort=False)["forward_passes"].mean()
        listed.append(
            f"Budget: {profile.settings['epochs']} epochs; forward passes over the training rows, a backward "
            f"counted as two, {'; '.join(f'{method}: {value:.3g}' for method, value in passes.items())}."
        )
    return [*listed, *status_note(frame), *([time_note(profile)] if timed else [])]


def grid_note(best: pd.DataFrame, by: Sequence[str] = ("method", "task")) -> str:
    """Say how many rates each row was tuned on, and where the best one ends its grid."""
    points = sorted({int(count) for count in best["grid_points"]})
    if not points:
        return "No row has a finished run."
    if points == [1]:
        return "Every row runs at one rate, the middle of its grid in the main tables: none is tuned here."
    counts = " or ".join(map(str, points))
    edge = best[best["edge"]]
    if edge.empty:
        return f"Each row at the best of {counts} rates; no best rate ends its grid."
    keys = [name for name in by if name in edge.columns]
    listed = "; ".join(
        f"{' '.join(f'B={row[name]}' if name == 'batch_size' else str(row[name]) for name in keys)} at {row['rate']:g}"
        for row in edge[[*keys, "rate"]].drop_duplicates().to_dict("records")
    )
    return f"Each row at the best of {counts} rates. The best one ends its grid, a better may lie beyond: {listed}."


def status_note(frame: pd.DataFrame) -> list[str]:
    """Return a sentence on runs that did not finish, if there are any."""
    counts = frame.drop_duplicates("id")["status"].value_counts()
    unfinished = ", ".join(f"{count} {status}" for status, count in counts.items() if status != "finished")
    return [f"Of {int(counts.sum())} runs, {unfinished}."] if unfinished else []


def time_note(profile: Profile) -> str:
    """Say what the seconds in a table are."""
    workers = int(profile.settings.get("workers", 1))
    return (
        f"Times are seconds of training on {workers} worker{'s' * (workers != 1)}, taken while other runs share the "
        "machine; forward passes do not depend on that."
    )


def data_frame(data: Iterable[Any], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a DataFrame; studies call this, since `scala-lab study --list` is to import them without pandas."""
    import pandas as pd

    return pd.DataFrame(data, columns=columns)
