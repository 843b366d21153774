"""Beyond the paper: can t_s be chosen during training as well as by trying every one?

The rule (`delay_rule="settled"`, scala_lab/methods/delay.py) starts the noise when the training loss has settled. It
is compared with every fixed t_s at equal cost: with the accuracy that fixed delays reach for the same forward passes,
read off the line through them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.methods.recipes import find_recipe
from scala_lab.report.figures.accuracy import cost_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.statistics import Estimate, paired_difference
from scala_lab.study.tables import best_runs, grid_note, status_note
from scala_lab.study.variants import LAMB, SCALA, side_cells
from studies.switch_point import delay_cells

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

ADAPTIVE = SCALA.but("adaptive", delay_rule="settled")


def cells(profile: Profile) -> list[Cell]:
    """ScaLA that chooses, ScaLA at every fixed t_s, and no noise at all."""
    return [
        *side_cells(profile, ADAPTIVE, profile.large_batch, profile.pair, delay=math.nan),
        *delay_cells(profile),
        *side_cells(profile, LAMB.named("never"), profile.large_batch, profile.pair, delay=math.inf),
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Accuracy against cost."""
    frame = frame.assign(setting=[setting_name(*row) for row in zip(frame["method"], frame["delay"], strict=True)])
    best = best_runs(frame, ("task", "setting"))
    against = at_equal_cost(best)
    latest = find_recipe(ADAPTIVE.recipe).option_values()["delay"]
    table = Tabulation(
        "",
        delay_table(best),
        f"Fixed and adaptive t_s at B={profile.large_batch}: where the noise starts, what it costs, accuracy (%).",
        [
            f"{profile.settings['epochs']} epochs, means over tasks {', '.join(profile.pair)} and "
            f"{len(profile.side_seeds)} seeds. {grid_note(best)}",
            *status_note(frame),
            "The adaptive rule waits until a half epoch's share of the fall of the training loss is below a tenth, and "
            f"starts at epoch {latest:g} at the latest.",
            f"Adaptive minus fixed t_s at equal forward passes: {against}.",
        ],
    )
    figures = []
    if len(best):
        shown = best.assign(joined=best["setting"] != ADAPTIVE.method)
        figures.append(
            Drawing("", cost_figure(shown, title="Fixed and adaptive t_s"), "Accuracy against cost, fixed t_s joined.")
        )
    starts = best[best["setting"] == ADAPTIVE.method]["noise_start"]
    found = (
        f"The rule starts the noise after {starts.mean():.2f} epochs on average ({starts.min():.2f} to "
        f"{starts.max():.2f}); at equal cost its accuracy minus that of fixed delays is {against}."
    )
    return Findings([table], figures, (), found)


def setting_name(method: str, delay: float) -> str:
    """How a cell is called: by its t_s where that is fixed."""
    return method if not math.isfinite(delay) else f"t_s={delay:g}"


def at_equal_cost(best: pd.DataFrame) -> Estimate:
    """Adaptive runs minus what fixed delays of the same task and seed reach for the same forward passes."""
    fixed = best[best["setting"] != ADAPTIVE.method].dropna(subset=["score"])
    adaptive, level = [], []
    for _, run in best[best["setting"] == ADAPTIVE.method].dropna(subset=["score"]).iterrows():
        line = fixed[(fixed["task"] == run["task"]) & (fixed["seed"] == run["seed"])].sort_values("forward_passes")
        if len(line) > 1:
            adaptive.append(run["score"])
            level.append(float(np.interp(run["forward_passes"], line["forward_passes"], line["score"])))
    return paired_difference(adaptive, level)


def delay_table(best: pd.DataFrame) -> pd.DataFrame:
    """A row per setting, those that cost least first."""
    means = best.groupby("setting", sort=False)[["noise_start", "forward_passes", "train_seconds", "score"]].mean()
    columns = {
        "noise_start": "noise from epoch",
        "forward_passes": "passes",
        "train_seconds": "time (s)",
        "score": "accuracy",
    }
    return means.sort_values("forward_passes").rename(columns=columns)


STUDY = Study(
    name="adaptive_delay",
    title="Choosing t_s during training",
    question="Can t_s be chosen during training as well as by trying every one?",
    cells=cells,
    analyse=analyse,
    paper_found="Left open: an adaptive choice of t_s is named as future work.",
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
