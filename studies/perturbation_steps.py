"""Figure 4: what do more ascent steps on the noise cost, and what do they gain?"""

import math
from dataclasses import replace
from itertools import product

from scala_lab.report.figures.accuracy import ACCURACY
from scala_lab.study import Cell, DataFrame, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import FACTOR, Estimate, contrast, mean_interval, paired_ratio
from scala_lab.study.tables import lines_drawing, means_by, notes
from scala_lab.study.variants import EFFECTIVE, SCALA_TUNED, arm_cells, tuned_settings
from scala_lab.study.verdicts import EQUAL, SAME_RATIO, Claim, ClaimRecord, at_most, equivalent, judge, record, within

PANELS = {ACCURACY: "score", "cost (forward passes over the rows)": "forward_passes"}

C8 = Claim(
    id="C8",
    statement="More than one ascent step costs linearly more and gains no accuracy.",
    paper="cost grows almost linearly with T; the best accuracy is at T=1 (QNLI)",
    rule="Forward passes at the largest T over those at T=1 above 1; where three T were run, those that a further step "
    f"adds are the same at the largest and at the smallest T within a factor of {SAME_RATIO}; accuracy at T>1 minus "
    f"that at T=1 at most {EQUAL} points. ScaLA has the t_s that is better on tuning rows; noise that acts is "
    "shown.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return ScaLA with the paper's noise and with noise that acts, at the radius that is best for T=1, over T."""
    task, batch_size = profile.tasks[:2][-1], profile.large_batch
    settings, _ = tuned_settings(profile, EFFECTIVE, batch_size, task)
    settings.pop("rate")
    effective = replace(EFFECTIVE, overrides=settings, radius="")
    cells = []
    for variant, steps in product((SCALA_TUNED, effective), profile.ascent_steps):
        varied = variant.but(variant.method, pga_steps=steps)
        cells += arm_cells(profile, varied, batch_size, [task], pga_steps=steps)
    return cells


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and cost over T."""
    task = profile.tasks[:2][-1]
    claim = judge(c8, frame, profile.level)
    table = Tabulation(
        "",
        means_by(frame, ("method", "pga_steps"), ("score", "dev", "forward_passes")).rename_axis(["method", "T"]),
        f"Figure 4: accuracy and cost over the ascent steps T on {task}, B={profile.large_batch}.",
        [
            *notes(profile, frame),
            "The noise starts after the recipe's delay, so T weighs only on the epochs that follow it.",
        ],
    )
    caption, title = f"Figure 4: accuracy and cost over T on {task}.", f"Ascent steps on {task}"
    figures = lines_drawing(frame, "pga_steps", caption, panels=PANELS, x_label="ascent steps T", title=title)
    gain = next((part.estimate for part in claim.parts if part.statement == GAINED), Estimate(math.nan))
    summary = f"With T>1 instead of T=1, accuracy changes by {gain} under the paper's rho and omega."
    return Findings([table], figures, [claim], summary)


GAINED = "accuracy at T>1 minus T=1"


def c8(frame: DataFrame) -> ClaimRecord:
    """Compare forward_passes and score over T, the column pga_steps."""
    steps = sorted({int(count) for count in frame["pga_steps"]})
    if len(steps) < 2:
        return record(C8, ())
    scala = frame[frame["method"] == SCALA_TUNED.method]
    cost = paired_ratio(scala, steps[-1], steps[0], value="forward_passes", column="pga_steps")
    parts = [within(f"forward passes at T={steps[-1]} over T={steps[0]}", cost, 1.0, math.inf, gated=False)]
    if len(steps) > 2:
        wide = scala.pivot_table("forward_passes", "seed", "pga_steps").reindex(columns=steps)
        last, first = ((wide[high] - wide[low]) / (high - low) for low, high in (steps[-2:], steps[:2]))
        about, growth = (
            "passes added by the last further step over those by the first",
            mean_interval(last / first, FACTOR),
        )
        parts.append(equivalent(about, growth, SAME_RATIO, paper=1.0, gated=False))
    weights = {**dict.fromkeys(steps[1:], 1 / (len(steps) - 1)), steps[0]: -1.0}
    for method, rows in frame.groupby("method", sort=False):
        gain = contrast(rows, weights, column="pga_steps")
        about = GAINED if method == SCALA_TUNED.method else f"{GAINED}, {method}"
        parts.append(at_most(about, gain, EQUAL, paper=0.0, contextual=method != SCALA_TUNED.method))
    return record(C8, parts, accuracy_gates(scala, steps, column="pga_steps"))


STUDY = declare(
    __name__,
    title="Number of ascent steps",
    question="What do more ascent steps on the noise cost, and what do they gain?",
    source="Figure 4",
    paper_found="QNLI: the overhead grows almost linearly with T, and the best accuracy is at T=1.",
)
