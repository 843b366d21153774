"""Figure 4: what do more ascent steps on the noise cost, and what do they gain?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.claims.noise import c8
from scala_lab.report.figures.accuracy import ACCURACY, lines_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, grid_note, status_note, time_note
from scala_lab.study.variants import EFFECTIVE, SCALA, side_cells

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


STUDY = Study(
    name="perturbation_steps",
    title="Number of ascent steps",
    question="What do more ascent steps on the noise cost, and what do they gain?",
    cells=cells,
    analyse=analyse,
    source="Figure 4",
    paper_found="QNLI: the overhead grows almost linearly with T, and the best accuracy is at T=1.",
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
