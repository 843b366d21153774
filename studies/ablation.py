"""Table 3: what does each part of ScaLA contribute, and what does it cost?"""

from __future__ import annotations

from functools import partial

from scala_lab.study import Cell, DataFrame, Findings, Profile, Study, Tabulation, main
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import LEVEL, paired_difference, paired_ratio
from scala_lab.study.tables import difference_drawing, notes, table_by_task
from scala_lab.study.variants import LAMB, SCALA_OTHER, SCALA_TUNED, SMALL_BATCH, WITHOUT_DELAY, arm_cells
from scala_lab.study.verdicts import EQUAL, SLACK, Claim, ClaimRecord, effect, equivalent, judge, record, within
from studies._paper_tables import TABLE_3, paper_table

INDEX = ("method", "batch_size")
WITHOUT_GROUPS = SCALA_TUNED.but("without group-wise rates", optimizer="adamw")
WITHOUT_NOISE = LAMB.but("without PGA-1")
"""ScaLA with lambda 0 takes LAMB's plain step to the bit, so LAMB's runs are its runs."""
SLOWER_WITHOUT_DELAY = (1.5 / SLACK, 1.9 * SLACK)

C11 = Claim(
    id="C11",
    source="Table 3",
    study="ablation",
    statement="Without delay ScaLA is 1.5 to 1.9 times slower and hardly more accurate; without group-wise rates, or "
    "without PGA-1, it is less accurate.",
    paper="1.5-1.9x and +0.1 points; -0.2 points; -0.8 points",
    rule="Forward passes without delay over those with it lie within {:.3g} to {:.3g}; accuracy without delay is equal "
    "within {} points; the two other rows minus ScaLA are effects at least half as large as the paper's. ScaLA has the "
    "t_s that is better on tuning rows; the other one is shown.".format(*SLOWER_WITHOUT_DELAY, EQUAL),
)


def cells(profile: Profile) -> list[Cell]:
    """Return the small-batch baseline, ScaLA, and ScaLA without each of its parts."""
    large = (SCALA_TUNED, SCALA_OTHER, WITHOUT_DELAY, WITHOUT_GROUPS, WITHOUT_NOISE)
    return [*arm_cells(profile, SMALL_BATCH, profile.small_batch), *arm_cells(profile, large, profile.large_batch)]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare cost and accuracy without each part."""
    claim = judge(partial(c11, level=profile.level), frame)
    scala = SCALA_TUNED.method
    table = Tabulation(
        "",
        table_by_task(
            frame, INDEX, profile.tasks, ("forward_passes", "score", "dev"), against=scala, level=profile.level
        ),
        f"Table 3: ScaLA at B={profile.large_batch} without each of its parts.",
        [
            *notes(profile, frame, against=scala),
            "Without PGA-1 the step is LAMB's to the bit, so that row is LAMB's runs. Without group-wise rates the "
            "optimizer is AdamW at its own rate.",
        ],
    )
    passes, delay, groups, noise = (part.estimate for part in claim.parts[:4])
    summary = (
        f"Without delay: {passes} the forward passes and {delay}; without group-wise rates {groups}; without PGA-1 "
        f"{noise}."
    )
    figures = difference_drawing(claim.parts[1:], "ScaLA without its parts", "Table 3")
    return Findings([table, paper_table(3, TABLE_3, INDEX)], figures, [claim], summary)


def c11(frame: DataFrame, scale: float = 1.0, level: float = LEVEL) -> ClaimRecord:
    """Compare the variants without delay, without group-wise rates and without PGA-1 with ScaLA."""
    scala, other, delay, groups, noise = (
        variant.method for variant in (SCALA_TUNED, SCALA_OTHER, WITHOUT_DELAY, WITHOUT_GROUPS, WITHOUT_NOISE)
    )
    minus = partial(paired_difference, frame, level=level)
    passes = paired_ratio(frame, delay, scala, value="forward_passes", level=level)
    parts = [
        within("forward passes without delay over ScaLA's", passes, *SLOWER_WITHOUT_DELAY, paper=1.7, gated=False),
        equivalent("accuracy without delay minus ScaLA", minus(delay, scala), EQUAL, paper=0.1, scale=scale),
        effect("accuracy without group-wise rates minus ScaLA", minus(groups, scala), -0.2, scale=scale),
        effect("accuracy without PGA-1 minus ScaLA", minus(noise, scala), -0.8, scale=scale),
        effect(f"accuracy without PGA-1 minus {other}", minus(noise, other), -0.8, scale=scale, contextual=True),
    ]
    return record(C11, parts, accuracy_gates(frame, (scala, delay, groups, noise)))


STUDY = Study(
    name="ablation",
    title="Parts of ScaLA",
    question="What does each part of ScaLA contribute, and what does it cost?",
    cells=cells,
    analyse=analyse,
    source="Table 3",
    paper_found="Without delay 1.5 to 1.9 times slower for +0.1 points; without group-wise rates -0.2; without PGA-1 "
    "-0.8, which is LAMB's row to the digit.",
    claims=(C11,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
