"""Figure 4: what do more ascent steps on the noise cost, and what do they gain?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.report.figures.accuracy import ACCURACY, lines_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.statistics import Estimate, paired_ratio
from scala_lab.study.tables import best_runs, grid_note, status_note, time_note
from scala_lab.study.variants import EFFECTIVE, SCALA, side_cells
from scala_lab.study.verdicts import (
    EQUAL,
    PAIRS,
    Claim,
    ClaimRecord,
    above,
    below,
    difference,
    mean_slope,
    record,
    within,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scala_lab.study.profiles import Profile

COST = "cost (forward passes over the rows)"
TIME = "time (s)"


def cells(profile: Profile) -> list[Cell]:
    """ScaLA with the paper's noise and with noise that acts, over T."""
    return [
        cell
        for row in (SCALA, EFFECTIVE)
        for steps in profile.ascent_steps
        for cell in side_cells(
            profile,
            row.but(row.method, pga_steps=steps),
            profile.large_batch,
            [profile.tasks[1]],
            seeds=profile.seeds,
            pga_steps=steps,
        )
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Accuracy and cost over T."""
    task = profile.tasks[1]
    best = best_runs(frame, ("method", "pga_steps"))
    claim = c8(best[best["method"] == SCALA.method])
    notes = [
        f"{task}, B={profile.large_batch}, means over {len(profile.seeds)} seeds. {grid_note(best)}",
        "The noise starts after the recipe's delay, so T weighs only on the epochs that follow it.",
        *status_note(frame),
        time_note(profile),
    ]
    table = Tabulation("", step_table(best), f"Figure 4: accuracy and cost over the ascent steps T on {task}.", notes)
    figures = [Drawing("", _figure(best, task), f"Figure 4: accuracy and cost over T on {task}.")] if len(best) else []
    gain = claim.parts[2].estimate
    found = f"With T>1 instead of T=1, accuracy changes by {gain} under the paper's rho and omega."
    return Findings([table], figures, [claim], found)


def step_table(best: pd.DataFrame) -> pd.DataFrame:
    """A row per recipe and T."""
    means = best.groupby(["method", "pga_steps"], sort=False)[["score", "forward_passes", "train_seconds"]].mean()
    return means.rename(columns={"score": "accuracy", "forward_passes": "passes", "train_seconds": TIME}).rename_axis(
        ["method", "T"]
    )


def _figure(best: pd.DataFrame, task: str) -> Figure:
    import pandas as pd

    panels = {ACCURACY: "score", COST: "forward_passes", TIME: "train_seconds"}
    shown = [best.assign(panel=name, value=best[column]) for name, column in panels.items()]
    return lines_figure(
        pd.concat(shown),
        "pga_steps",
        x_label="ascent steps T",
        title=f"Ascent steps on {task}",
        y="value",
        y_label="",
        panel="panel",
    )


STEADY = (0.8, 1.25)
"""Ratio of two costs, or of two divergences, that count as the same."""

C8 = Claim(
    id="C8",
    source="Figure 4",
    study="perturbation_steps",
    statement="More than one ascent step costs linearly more and gains no accuracy.",
    paper="cost grows almost linearly with T; the best accuracy is at T=1 (QNLI)",
    rule="Forward passes that a further step adds at the largest T over those at the smallest within {} to {}; seconds "
    "added per step, relative to T=1, above 0; accuracy at T>1 minus that at T=1 below {} points.".format(
        *STEADY, EQUAL
    ),
)


def c8(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: one recipe over pga_steps."""
    first = _at_first_step(frame, "train_seconds")
    relative = frame.assign(relative=frame["train_seconds"] / first)
    gain = frame.assign(many=np.where(frame["pga_steps"] > 1, "T>1", "T=1"))
    gain = gain.groupby([*_pairs(gain), "many"], as_index=False)["score"].mean()
    seconds = mean_slope(relative, "pga_steps", "relative")
    return record(
        C8,
        [
            within("cost of the last further step over that of the first", _steadiness(frame), *STEADY),
            above("seconds added per step, relative to T=1", _plain(seconds)),
            below("accuracy at T>1 minus T=1", difference(gain, "T>1", "T=1", column="many"), EQUAL),
        ],
    )


def _pairs(frame: pd.DataFrame) -> list[str]:
    return [name for name in PAIRS if name in frame.columns]


def _at_first_step(frame: pd.DataFrame, value: str) -> pd.Series:
    """The value that each row's pair has at the smallest T."""
    import pandas as pd

    keys = _pairs(frame)
    one = frame[frame["pga_steps"] == frame["pga_steps"].min()].set_index(keys)[value]
    return pd.Series(one.reindex(pd.MultiIndex.from_frame(frame[keys])).to_numpy(), index=frame.index)


def _steadiness(frame: pd.DataFrame) -> Estimate:
    """Passes per further step between the two largest T, over those between the two smallest."""
    wide = frame.pivot_table("forward_passes", _pairs(frame), "pga_steps")
    steps = sorted(wide.columns)
    if len(steps) < 3:
        return paired_ratio([], [])
    added = [(wide[high] - wide[low]) / (high - low) for low, high in ((steps[-2], steps[-1]), (steps[0], steps[1]))]
    return paired_ratio(*added)


def _plain(estimate: Estimate) -> Estimate:
    return Estimate(estimate.value, estimate.low, estimate.high, estimate.n, estimate.effect_size)


STUDY = Study(
    name="perturbation_steps",
    title="Number of ascent steps",
    question="What do more ascent steps on the noise cost, and what do they gain?",
    cells=cells,
    analyse=analyse,
    source="Figure 4",
    paper_found="QNLI: the overhead grows almost linearly with T, and the best accuracy is at T=1.",
    claims=(C8,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
