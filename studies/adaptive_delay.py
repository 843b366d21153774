"""Beyond the paper: can t_s be chosen during training as well as by trying every one?

The rule (`delay_rule="settled"`, `Settling` in scala_lab/methods/base.py) starts the noise when the training loss has
settled. It is compared with every fixed t_s at equal cost: with the accuracy that fixed delays reach for the same
forward passes, interpolated linearly between them.
"""

import numpy as np

from scala_lab.report.figures.accuracy import cost_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.statistics import Estimate, mean_interval
from scala_lab.study.tables import means_by, notes
from scala_lab.study.variants import LAMB, SCALA, arm_cells

ADAPTIVE = SCALA.but("adaptive", delay_rule="settled")
SHOWN = ("noise_start", "forward_passes", "score")


def cells(profile: Profile) -> list[Cell]:
    """Return ScaLA with the adaptive rule, ScaLA at every fixed t_s, and LAMB for no noise at all."""
    fixed = [SCALA.but(f"t_s={delay:g}", delay=delay) for delay in profile.delays]
    return arm_cells(profile, [ADAPTIVE, *fixed, LAMB.but("never")], profile.large_batch, profile.pair)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy against cost."""
    finished = frame.dropna(subset=["score"])
    gain = at_equal_cost(finished).at(profile.level)
    table = Tabulation(
        "",
        means_by(finished, ["method"], SHOWN).sort_values("passes"),
        f"Fixed and adaptive t_s at B={profile.large_batch}: where the noise starts, what it costs, accuracy (%).",
        [
            *notes(profile, frame),
            "The adaptive rule waits until a half epoch's share of the fall of the training loss is below a tenth, and "
            f"starts at epoch {profile.late_delay:g} at the latest.",
            f"Adaptive minus fixed t_s at equal forward passes: {gain}.",
        ],
    )
    figures = []
    if len(finished):
        points = finished.assign(setting=finished["method"], joined=finished["method"] != ADAPTIVE.method)
        figure = cost_figure(points, title="Fixed and adaptive t_s")
        figures.append(Drawing("", figure, "Accuracy against cost, fixed t_s joined."))
    starts = finished[finished["method"] == ADAPTIVE.method]["noise_start"]
    summary = (
        f"The rule starts the noise after {starts.mean():.2f} epochs on average ({starts.min():.2f} to "
        f"{starts.max():.2f}); at equal cost its accuracy minus that of fixed delays is {gain}."
    )
    return Findings([table], figures, (), summary if len(starts) else "")


def at_equal_cost(finished: DataFrame) -> Estimate:
    """Return adaptive runs minus what fixed delays reach for the same forward passes, averaged over tasks, by seed."""
    by_seed = []
    for _, runs in finished.groupby("seed"):
        gains = []
        for _, line in runs.sort_values("forward_passes").groupby("task"):
            chosen = line["method"] == ADAPTIVE.method
            fixed, adaptive = line[~chosen], line[chosen]
            if len(fixed) > 1 and len(adaptive) == 1:
                reached = np.interp(adaptive["forward_passes"], fixed["forward_passes"], fixed["score"])
                gains.append(float(adaptive["score"].iloc[0] - reached[0]))
        if len(gains) == finished["task"].nunique():
            by_seed.append(float(np.mean(gains)))
    return mean_interval(by_seed, "points")


STUDY = declare(
    __name__,
    title="Choosing t_s during training",
    question="Can t_s be chosen during training as well as by trying every one?",
    paper_found="Left open: an adaptive choice of t_s is named as future work.",
)
