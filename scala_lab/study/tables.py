"""From the rows of runs to tables as the paper prints them, with the notes below them, and figures of differences.

A table has a row per method and columns per task. "Avg." is the mean of all figures of a row as the paper counts
them: a task with accuracy and F1 enters twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scala_lab.report.figures.accuracy import lines_figure
from scala_lab.report.figures.forest import difference_figure
from scala_lab.study.api import Drawing, Findings, Tabulation
from scala_lab.study.statistics import LEVEL, Estimate, mean_interval, paired_difference
from scala_lab.study.variants import SCALA_TUNED
from scala_lab.study.verdicts import Part, Rule, judge

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

HEADINGS = {
    "steps": "steps",
    "seconds": "time (s)",
    "forward_passes": "passes",
    "score": "accuracy",
    "dev": "dev accuracy",
    "noise_start": "noise from epoch",
    "divergence": "divergence r",
}
"""Headings of a table by the column of a run's row."""


def accuracy_findings(
    profile: Profile,
    frame: pd.DataFrame,
    rules: Sequence[Rule],
    *,
    caption: str,
    note: str,
    against: str,
    found: str,
    index: Sequence[str] = ("method", "batch_size"),
    tasks: Sequence[str] = (),
    shown: Sequence[str] = ("score", "dev"),
    title: str = "",
    tables: Sequence[Tabulation] = (),
    figures: Sequence[Drawing] = (),
) -> Findings:
    """Judge claims on accuracy, and return them with a table by task and the figure of their differences.

    The table is that of `table_by_task`, by default over all tasks, with the usual notes and one more; `tables` and
    `figures` stand beside. Its caption begins with what it is about, such as "Table 2: "; so does that of the figure,
    which has a `title`, or is left out. In `found`, {0}, {1}, ... stand for the estimates of the claims' parts.
    """
    claims = [judge(rule, frame, profile.level) for rule in rules]
    parts = [part for claim in claims for part in claim.parts]
    table = table_by_task(frame, index, tasks or profile.tasks, shown, against=against, level=profile.level)
    listed = [*notes(profile, frame, against=against), note]
    points = [part for part in parts if title and part.estimate.unit == "points"]
    return Findings(
        [Tabulation("", table, caption, listed), *tables],
        [*figures, *difference_drawing(points, title, caption.partition(":")[0], "gains" if figures else "")],
        claims,
        found.format(*(part.estimate for part in parts)) if parts else "",
    )


def table_by_task(
    frame: pd.DataFrame,
    index: Sequence[str],
    tasks: Sequence[str],
    shown: Sequence[str] = ("score", "dev"),
    *,
    against: str = "",
    level: float = LEVEL,
) -> pd.DataFrame:
    """Return means over seeds: a row per value of `index`, `shown` per task, and the average.

    With `against`, a method, each row has its paired difference from it, averaged over tasks, with the interval.
    """
    import pandas as pd

    rows = []
    for key, runs in frame.groupby(list(index), sort=False):
        row: dict[str, Any] = dict(zip(index, key, strict=True))
        for task in tasks:
            row |= _task_means(task, runs[runs["task"] == task], shown)
        row["Avg."] = _average(runs, tasks)
        if against:
            same = frame[frame["model"] == row["model"]] if "model" in row else frame
            difference = Estimate(math.nan)
            if row["method"] != against:
                difference = paired_difference(same, row["method"], against).at(level)
            low, high = difference.interval
            row |= {f"minus {against}": difference.value, "from": low, "to": high}
        rows.append(row)
    return pd.DataFrame(rows).set_index(list(index)).rename_axis([name.replace("_", " ") for name in index])


def _task_means(task: str, runs: pd.DataFrame, shown: Sequence[str]) -> dict[str, Any]:
    diverged = (runs["status"] == "diverged").any()
    held_out = "score_split" in runs and (runs["score_split"] == "heldout").any()
    means: dict[str, Any] = {
        f"{task} {HEADINGS[name]}": "diverged" if name == "score" and diverged else float(runs[name].mean())
        for name in shown
        if name != "dev" or held_out
    }
    if runs["f1"].notna().any():
        means[f"{task} F1"] = float(runs["f1"].mean())
    return means


def _average(runs: pd.DataFrame, tasks: Sequence[str]) -> float:
    """Return the mean over tasks of each seed's figures, then over the seeds that have all tasks."""
    finished = runs[runs["status"] == "finished"]
    per_seed = [
        mean_interval([*group["score"], *group["f1"].dropna()]).value
        for _, group in finished.groupby("seed")
        if set(tasks) <= set(group["task"])
    ]
    return mean_interval(per_seed).value


def means_by(frame: pd.DataFrame, keys: Sequence[str], shown: Iterable[str]) -> pd.DataFrame:
    """Return the means of some columns over the runs of each group, under their headings."""
    return frame.groupby(list(keys), sort=False)[list(shown)].mean().rename(columns=HEADINGS)


def two_digits(values: pd.Series) -> pd.Series:
    """Round to two significant digits, for columns that span decades."""
    return values.map(lambda value: float(f"{value:.2g}"))


def notes(profile: Profile, frame: pd.DataFrame, *, against: str = "") -> list[str]:
    """Return the notes of a table: seeds, rows and t_s, budget, and runs that did not finish."""
    finished = frame[frame["status"] == "finished"]
    listed = [f"Means over {finished['seed'].nunique()} seeds, at settings tuned on rows of their own."]
    if against:
        listed[0] += f" 'minus {against}' is paired by seed, with its {100 * profile.level:g}% interval."
    chosen = finished[finished["method"] == SCALA_TUNED.method].groupby("task", sort=False)["noise_start"].first()
    if len(chosen):
        starts = ", ".join(f"{start:g} on {task}" for task, start in chosen.items())
        listed.append(f"ScaLA's t_s, of the paper's two the better on tuning rows: {starts}.")
    if len(finished):
        passes = finished.groupby("method", sort=False)["forward_passes"].mean()
        listed.append(
            f"Budget: {profile.settings['epochs']} epochs; forward passes over the training rows, a backward "
            f"counted as two, {'; '.join(f'{method}: {value:.3g}' for method, value in passes.items())}."
        )
    seen = [task for task in dict.fromkeys(frame["task"]) if task in profile.seen_tasks]
    if seen:
        listed.append(
            f"The encoder was pretrained on sentence pairs that include rows of {', '.join(seen)}: results on "
            f"{'it' if len(seen) == 1 else 'them'} are not those of unseen data."
        )
    return [*listed, *status_note(frame)]


def lines_drawing(
    frame: pd.DataFrame, x: str, caption: str, *, panels: Mapping[str, str] | None = None, **look: Any
) -> list[Drawing]:
    """Return the figure of accuracy over a setting x, if any run has a score, with the options of `lines_figure`.

    It has a panel per task, or one per column of the frame that `panels` names by its title.
    """
    import pandas as pd

    if not frame["score"].notna().any():
        return []
    if panels:
        frame = pd.concat([frame.assign(panel=title, value=frame[column]) for title, column in panels.items()])
        look |= {"panel": "panel", "y": "value", "y_label": ""}
    return [Drawing("", lines_figure(frame, x, **look), caption)]


def difference_drawing(parts: Sequence[Part], title: str, about: str, name: str = "") -> list[Drawing]:
    """Return the figure of a claim's parts, if any was measured; `about` begins its caption."""
    if not any(math.isfinite(part.estimate.value) for part in parts):
        return []
    caption = f"{about}: differences paired by seed; marks are seeds, diamonds the paper's values."
    return [Drawing(name, difference_figure(parts, title=title), caption)]


def status_note(frame: pd.DataFrame) -> list[str]:
    """Return a sentence on runs that did not finish, if there are any."""
    counts = frame.drop_duplicates("id")["status"].value_counts()
    unfinished = ", ".join(f"{count} {status}" for status, count in counts.items() if status != "finished")
    return [f"Of {int(counts.sum())} runs, {unfinished}."] if unfinished else []


def data_frame(data: Iterable[Any], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a DataFrame; studies call this, since `scala-lab study --list` is to import them without pandas."""
    import pandas as pd

    return pd.DataFrame(data, columns=columns)
