"""Table 3: what does each part of ScaLA contribute, and what does it cost?"""

from functools import partial

from scala_lab.study import Cell, DataFrame, Findings, Profile, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference, paired_ratio
from scala_lab.study.tables import accuracy_findings
from scala_lab.study.variants import LAMB, SCALA_OTHER, SCALA_TUNED, SMALL_BATCH, WITHOUT_DELAY, arm_cells
from scala_lab.study.verdicts import EQUAL, SLACK, Claim, ClaimRecord, effect, equivalent, record, within
from studies._paper_tables import paper_table

WITHOUT_GROUPS = SCALA_TUNED.but("without group-wise rates", optimizer="adamw")
WITHOUT_NOISE = LAMB.but("without PGA-1")
"""ScaLA with lambda 0 takes LAMB's plain step to the bit, so LAMB's runs are its runs."""
SLOWER_WITHOUT_DELAY = (1.5 / SLACK, 1.9 * SLACK)

C11 = Claim(
    id="C11",
    statement="Without delay ScaLA is 1.5 to 1.9 times slower and hardly more accurate; without group-wise rates, or "
    "without PGA-1, it is less accurate.",
    paper="1.5-1.9x and +0.1 points; -0.2 points; -0.8 points",
    rule="Forward passes without delay over those with it lie within {:.3g} to {:.3g}; accuracy without delay is equal "
    "within {} points; the two other rows minus ScaLA have the paper's sign, and not less than half of its size. ScaLA "
    "has the t_s that is better on tuning rows; the other one is shown.".format(*SLOWER_WITHOUT_DELAY, EQUAL),
)


def cells(profile: Profile) -> list[Cell]:
    """Return the small-batch baseline, ScaLA, and ScaLA without each of its parts."""
    large = (SCALA_TUNED, SCALA_OTHER, WITHOUT_DELAY, WITHOUT_GROUPS, WITHOUT_NOISE)
    return [*arm_cells(profile, SMALL_BATCH, profile.small_batch), *arm_cells(profile, large, profile.large_batch)]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare cost and accuracy without each part."""
    return accuracy_findings(
        profile,
        frame,
        [c11],
        caption=f"Table 3: ScaLA at B={profile.large_batch} without each of its parts.",
        note="Without PGA-1 the step is LAMB's to the bit, so that row is LAMB's runs. Without group-wise rates the "
        "optimizer is AdamW at its own rate.",
        shown=("forward_passes", "score", "dev"),
        against=SCALA_TUNED.method,
        title="ScaLA without its parts",
        tables=[paper_table(3)],
        found="Without delay: {} the forward passes and {}; without group-wise rates {}; without PGA-1 {}.",
    )


def c11(frame: DataFrame) -> ClaimRecord:
    """Compare the variants without delay, without group-wise rates and without PGA-1 with ScaLA."""
    scala, other, delay, groups, noise = (
        variant.method for variant in (SCALA_TUNED, SCALA_OTHER, WITHOUT_DELAY, WITHOUT_GROUPS, WITHOUT_NOISE)
    )
    minus, passes = partial(paired_difference, frame), paired_ratio(frame, delay, scala, value="forward_passes")
    about = "forward passes without delay over ScaLA's"
    parts = [
        within(about, passes, *SLOWER_WITHOUT_DELAY, paper=1.7, gated=False, fixed=True),
        equivalent("accuracy without delay minus ScaLA", minus(delay, scala), EQUAL, paper=0.1),
        effect("accuracy without group-wise rates minus ScaLA", minus(groups, scala), -0.2),
        effect("accuracy without PGA-1 minus ScaLA", minus(noise, scala), -0.8),
        effect(f"accuracy without PGA-1 minus {other}", minus(noise, other), -0.8, contextual=True),
    ]
    return record(C11, parts, accuracy_gates(frame, (scala, delay, groups, noise)))


STUDY = declare(
    __name__,
    title="Parts of ScaLA",
    question="What does each part of ScaLA contribute, and what does it cost?",
    source="Table 3",
    paper_found="Without delay 1.5 to 1.9 times slower for +0.1 points; without group-wise rates -0.2; without PGA-1 "
    "-0.8, which is LAMB's row to the digit.",
)
