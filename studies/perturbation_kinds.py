"""Table 5: does the direction of the noise matter: none, random, along the true label, along the prediction?

All kinds branch off LAMB's runs at the paper's later t_s, so that they differ in the noise alone.
"""

from scala_lab.study import Cell, DataFrame, Findings, Profile, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference
from scala_lab.study.tables import accuracy_findings
from scala_lab.study.variants import BASELINE, EFFECTIVE, GAUSSIAN, LAMB, ONE_DRAW, RDROP, SCALA, TWO_DRAWS, arm_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, record
from studies._paper_tables import paper_table

SCALA_LP = SCALA.but("ScaLA (LP)")
SCALA_GT = SCALA.but("ScaLA (GT)", target="GT")

C13 = Claim(
    id="C13",
    statement="Noise along the label probability helps more than noise along the true label, that more than Gaussian "
    "noise, and that more than none.",
    paper="89.4 / 89.0 / 88.7 / 88.4",
    rule="Each of the three differences in that order is above 0, and not below half of the paper's 0.4, 0.3 and "
    "0.3 points. None is LAMB, the optimizer of all kinds; the paper's last row is AdamW, and against its own row of "
    "LAMB its Gaussian noise gains 0.1. All kinds start at t_s=5.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the paper's rows, LAMB without noise, our two controls, noise that acts, and R-Drop."""
    rows = (BASELINE, LAMB, GAUSSIAN, SCALA_GT, SCALA_LP, TWO_DRAWS, ONE_DRAW, EFFECTIVE, RDROP)
    return arm_cells(profile, rows, profile.large_batch)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy by kind of noise."""
    return accuracy_findings(
        profile,
        frame,
        [c13],
        caption=f"Table 5: accuracy (%) by kind of perturbation at B={profile.large_batch}.",
        note="The baseline is AdamW, all other rows LAMB. Beyond the paper: 'two draws, no noise': the divergence of "
        "two dropout draws alone; 'noise, one draw': the paper's noise with shared masks; ScaLA-effective: noise large "
        "enough to act, from the earlier t_s on; R-Drop as published: two draws from the first step on, both of which "
        "learn the task.",
        index=("method",),
        against=LAMB.method,
        title="Kinds of perturbation",
        tables=[paper_table(5)],
        found="LP minus GT {}; GT minus Gaussian {}; Gaussian minus none {}.",
    )


def c13(frame: DataFrame) -> ClaimRecord:
    """Compare each kind of noise with the next weaker one: ScaLA (LP), ScaLA (GT), Gaussian noise, LAMB."""
    arms = target, truth, gaussian, none = [variant.method for variant in (SCALA_LP, SCALA_GT, GAUSSIAN, LAMB)]
    pairs = [(target, truth, 0.4), (truth, gaussian, 0.3), (gaussian, none, 0.3)]
    context = [(target, none, 0.8), (gaussian, BASELINE.method, 0.3)]
    parts = [
        effect(f"{better} minus {worse}", paired_difference(frame, better, worse), paper, contextual=pair in context)
        for pair in (*pairs, *context)
        for better, worse, paper in [pair]
    ]
    return record(C13, parts, accuracy_gates(frame, arms))


STUDY = declare(
    __name__,
    title="Kinds of perturbation",
    question="Does the direction of the noise matter: none, random, along the true label, along the prediction?",
    source="Table 5",
    paper_found="Averages: LP 89.4, GT 89.0, Gaussian 88.7, none 88.4.",
)
