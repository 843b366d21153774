"""Beyond the paper: how strong must the noise be to act, and when is it too strong?

Adversarial noise with normalized ascent (rho = omega) over decades of omega, in units of the median norm of a word
embedding, with shared dropout masks, so that the noise is the only difference between the two passes.
"""

import math
from dataclasses import replace

from scala_lab.report.figures.accuracy import ACCURACY
from scala_lab.study import Cell, DataFrame, Findings, Profile, Tabulation, declare
from scala_lab.study.statistics import paired_difference
from scala_lab.study.tables import HEADINGS, lines_drawing, means_by, notes, two_digits
from scala_lab.study.variants import EFFECTIVE, LAMB, arm_cells

NORMALIZED, NO_NOISE = "normalized ascent, rho = omega", "no noise (LAMB)"
DIVERGENCE = HEADINGS["divergence"]


def cells(profile: Profile) -> list[Cell]:
    """Return LAMB, and noise at every omega."""
    batch_size, tasks = profile.large_batch, profile.pair[-1:]
    cells = arm_cells(profile, LAMB.but(NO_NOISE), batch_size, tasks, omega=math.inf)
    for omega in profile.strengths:
        given = replace(EFFECTIVE.but(NORMALIZED, omega=omega, rho=omega), radius="")
        cells += arm_cells(profile, given, batch_size, tasks, omega=omega)
    return cells


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and divergence over omega."""
    task = profile.pair[-1]
    table = Tabulation(
        "",
        strength_table(frame, profile.level),
        f"Accuracy (%) and mean divergence r over omega on {task}, B={profile.large_batch}.",
        [
            *notes(profile, frame, against=NO_NOISE),
            "omega in units of the median norm of a word embedding; shared dropout masks, delay of the effective "
            "recipe. r is that of the last step.",
        ],
    )
    figures = lines_drawing(
        frame.assign(divergence=frame["divergence"].where(frame["divergence"] > 0)),
        "omega",
        f"Accuracy and divergence over omega on {task}.",
        panels={ACCURACY: "score", DIVERGENCE: "divergence"},
        x_label="omega, log scale",
        title=f"Strength of the noise on {task}",
        log_x=True,
        log_y=(DIVERGENCE,),
    )
    scores = frame[frame["method"] == NORMALIZED].groupby("omega")["score"].mean().dropna()
    if scores.empty:
        return Findings([table], figures)
    summary = (
        f"Without noise {frame[frame['method'] == NO_NOISE]['score'].mean():.2f}%; with normalized ascent the best is "
        f"{scores.max():.2f}% at omega {scores.idxmax():g}, the worst {scores.min():.2f}% at {scores.idxmin():g}."
    )
    return Findings([table], figures, (), summary)


def strength_table(frame: DataFrame, level: float) -> DataFrame:
    """Return a row per kind and omega, with the paired difference from no noise."""
    means = means_by(frame, ("method", "omega"), ("score", "divergence")).reset_index()
    for row, (method, omega) in enumerate(zip(means["method"], means["omega"], strict=True)):
        if method != NO_NOISE:
            pair = frame[(frame["omega"] == math.inf) | ((frame["method"] == method) & (frame["omega"] == omega))]
            gain = paired_difference(pair, method, NO_NOISE).at(level)
            means.loc[row, ["minus no noise", "from", "to"]] = gain.value, *gain.interval
    means["omega"] = means["omega"].where(means["omega"] != math.inf)
    means[DIVERGENCE] = two_digits(means[DIVERGENCE])
    return means.set_index(["method", "omega"])


STUDY = declare(
    __name__,
    title="Strength of the noise",
    question="How strong must the noise be to act, and when is it too strong?",
    paper_found="Only rho 1e-4 and omega 1e-5 are reported, as values that worked well enough.",
)
