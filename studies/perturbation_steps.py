"""Figure 4: what do more ascent steps on the noise cost, and what do they gain?"""

from __future__ import annotations

import numpy as np

from scala_lab.report.figures.accuracy import ACCURACY, lines_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import Estimate, paired_ratio
from scala_lab.study.tables import best_runs, grid_note, means_by, panel_rows, status_note, time_note
from scala_lab.study.variants import EFFECTIVE, SCALA, side_cells
from scala_lab.study.verdicts import (
    EQUAL,
    SAME_RATIO,
    Claim,
    ClaimRecord,
    above,
    below,
    difference,
    mean_slope,
    pair_keys,
    record,
    within,
)

PANELS = {ACCURACY: "score", "cost (forward passes over the rows)": "forward_passes", "time (s)": "train_seconds"}

C8 = Claim(
    id="C8",
    source="Figure 4",
    study="perturbation_steps",
    statement="More than one ascent step costs linearly more and gains no accuracy.",
    paper="cost grows almost linearly with T; the best accuracy is at T=1 (QNLI)",
    rule="Forward passes that a further step adds at the largest T over those at the smallest within {} to {}; seconds "
    "added per step, relative to T=1, above 0; accuracy at T>1 minus that at T=1 below {} points.".format(
        *SAME_RATIO, EQUAL
    ),
)


def cells(profile: Profile) -> list[Cell]:
    """Return ScaLA with the paper's noise and with noise that acts, over T."""
    task, batch_size, seeds = profile.tasks[1], profile.large_batch, profile.seeds
    return [
        cell
        for variant in (SCALA, EFFECTIVE)
        for steps in profile.ascent_steps
        for cell in side_cells(
            profile, variant.but(variant.method, pga_steps=steps), batch_size, [task], seeds=seeds, pga_steps=steps
        )
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and cost over T."""
    task = profile.tasks[1]
    best = best_runs(frame, ("method", "pga_steps"))
    claim = c8(best[best["method"] == SCALA.method])
    table = Tabulation(
        "",
        means_by(best, ("method", "pga_steps"), PANELS.values()).rename_axis(["method", "T"]),
        f"Figure 4: accuracy and cost over the ascent steps T on {task}.",
        [
            f"{task}, B={profile.large_batch}, means over {len(profile.seeds)} seeds. {grid_note(best)}",
            "The noise starts after the recipe's delay, so T weighs only on the epochs that follow it.",
            *status_note(frame),
            time_note(profile),
        ],
    )
    figures = []
    if len(best):
        figure = lines_figure(
            panel_rows(best, PANELS),
            "pga_steps",
            x_label="ascent steps T",
            title=f"Ascent steps on {task}",
            y="value",
            y_label="",
            panel="panel",
        )
        figures.append(Drawing("", figure, f"Figure 4: accuracy and cost over T on {task}."))
    gain = claim.parts[2].estimate
    summary = f"With T>1 instead of T=1, accuracy changes by {gain} under the paper's rho and omega."
    return Findings([table], figures, [claim], summary)


def c8(best: DataFrame) -> ClaimRecord:
    """Compare forward_passes, train_seconds and score of one recipe over T, the column pga_steps."""
    keys = pair_keys(best)
    first = best[best["pga_steps"] == best["pga_steps"].min()].set_index(keys)["train_seconds"]
    relative = best.join(first.rename("first"), on=keys)
    relative = relative.assign(seconds=relative["train_seconds"] / relative["first"])
    count = np.where(best["pga_steps"] > 1, "T>1", "T=1")
    by_count = best.assign(count=count).groupby([*keys, "count"], as_index=False)["score"].mean()
    parts = [
        within("cost of the last further step over that of the first", _cost_growth(best), *SAME_RATIO),
        above("seconds added per step, relative to T=1", mean_slope(relative, "pga_steps", "seconds", unit="")),
        below("accuracy at T>1 minus T=1", difference(by_count, "T>1", "T=1", column="count"), EQUAL),
    ]
    return record(C8, parts)


def _cost_growth(best: DataFrame) -> Estimate:
    """Return the passes per further step between the two largest T, over those between the two smallest."""
    wide = best.pivot_table("forward_passes", pair_keys(best), "pga_steps")
    steps = sorted(wide.columns)
    if len(steps) < 3:
        return paired_ratio([], [])
    last, first = ((wide[high] - wide[low]) / (high - low) for low, high in (steps[-2:], steps[:2]))
    return paired_ratio(last, first)


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
