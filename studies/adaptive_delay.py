"""Beyond the paper: can t_s be chosen during training as well as by trying every one?

The rule (`delay_rule="settled"`, `Settling` in scala_lab/methods/scala.py) starts the noise when the training loss has
settled. It is compared with every fixed t_s at equal cost: with the accuracy that fixed delays reach for the same
forward passes, interpolated linearly between them.
"""

from __future__ import annotations

import math

import numpy as np

from scala_lab.methods.recipes import find_recipe
from scala_lab.report.figures.accuracy import cost_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import Estimate, paired_difference
from scala_lab.study.tables import best_runs, grid_note, means_by, status_note
from scala_lab.study.variants import LAMB, SCALA, delay_cells, side_cells

ADAPTIVE = SCALA.but("adaptive", delay_rule="settled")
SHOWN = ("noise_start", "forward_passes", "train_seconds", "score")


def cells(profile: Profile) -> list[Cell]:
    """Return ScaLA with the adaptive rule, ScaLA at every fixed t_s, and LAMB for no noise at all."""
    return [
        *side_cells(profile, ADAPTIVE, profile.large_batch, profile.pair, delay=math.nan),
        *delay_cells(profile),
        *side_cells(profile, LAMB.named("never"), profile.large_batch, profile.pair, delay=math.inf),
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy against cost."""
    frame = frame.assign(setting=[setting_name(*row) for row in zip(frame["method"], frame["delay"], strict=True)])
    best = best_runs(frame, ("task", "setting"))
    gain = at_equal_cost(best)
    latest = find_recipe(ADAPTIVE.recipe).option_values()["delay"]
    table = Tabulation(
        "",
        means_by(best, ["setting"], SHOWN).sort_values("passes"),
        f"Fixed and adaptive t_s at B={profile.large_batch}: where the noise starts, what it costs, accuracy (%).",
        [
            f"{profile.settings['epochs']} epochs, means over tasks {', '.join(profile.pair)} and "
            f"{len(profile.side_seeds)} seeds. {grid_note(best)}",
            *status_note(frame),
            "The adaptive rule waits until a half epoch's share of the fall of the training loss is below a tenth, and "
            f"starts at epoch {latest:g} at the latest.",
            f"Adaptive minus fixed t_s at equal forward passes: {gain}.",
        ],
    )
    figures = []
    if len(best):
        figure = cost_figure(best.assign(joined=best["setting"] != ADAPTIVE.method), title="Fixed and adaptive t_s")
        figures.append(Drawing("", figure, "Accuracy against cost, fixed t_s joined."))
    starts = best[best["setting"] == ADAPTIVE.method]["noise_start"]
    summary = (
        f"The rule starts the noise after {starts.mean():.2f} epochs on average ({starts.min():.2f} to "
        f"{starts.max():.2f}); at equal cost its accuracy minus that of fixed delays is {gain}."
    )
    return Findings([table], figures, (), summary)


def setting_name(method: str, delay: float) -> str:
    """Return the name of a row of the table: its t_s where that is fixed."""
    return f"t_s={delay:g}" if math.isfinite(delay) else method


def at_equal_cost(best: DataFrame) -> Estimate:
    """Return adaptive runs minus what fixed delays of the same task and seed reach for the same forward passes."""
    finished = best.dropna(subset=["score"])
    fixed = finished[finished["setting"] != ADAPTIVE.method]
    adaptive, interpolated = [], []
    for _, run in finished[finished["setting"] == ADAPTIVE.method].iterrows():
        line = fixed[(fixed["task"] == run["task"]) & (fixed["seed"] == run["seed"])].sort_values("forward_passes")
        if len(line) > 1:
            adaptive.append(run["score"])
            interpolated.append(float(np.interp(run["forward_passes"], line["forward_passes"], line["score"])))
    return paired_difference(adaptive, interpolated)


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
