"""Table 3: what does each part of ScaLA contribute, and what does it cost?"""

from __future__ import annotations

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, EFFECTIVE, LAMB, SCALA, WITHOUT_DELAY, side_cells
from scala_lab.study.verdicts import EQUAL, SLACK, Claim, ClaimRecord, below, cost_parts, difference, record, within
from studies._paper_tables import TABLE_3, paper_table

INDEX = ("method", "batch_size")
WITHOUT_GROUPS = SCALA.but("without group-wise rates", optimizer="adamw")
WITHOUT_NOISE = LAMB.named("without PGA-1")
"""ScaLA with lambda 0 takes LAMB's plain step to the bit, so LAMB's runs are its runs."""
SLOWER_WITHOUT_DELAY = (1.5 / SLACK, 1.9 * SLACK)

C11 = Claim(
    id="C11",
    source="Table 3",
    study="ablation",
    statement="Without delay ScaLA is 1.5 to 1.9 times slower and hardly more accurate; without group-wise rates, or "
    "without PGA-1, it is less accurate.",
    paper="1.5-1.9x and +0.1 points; -0.2 points; -0.8 points",
    rule="Cost without delay over with it, in forward passes and in seconds, within {:.3g} to {:.3g}; accuracy without "
    "delay within {} points; both other rows minus ScaLA below 0.".format(*SLOWER_WITHOUT_DELAY, EQUAL),
)


def cells(profile: Profile) -> list[Cell]:
    """Return the small-batch baseline, ScaLA, and ScaLA without each of its parts."""
    large = (SCALA, WITHOUT_DELAY, WITHOUT_GROUPS, WITHOUT_NOISE, EFFECTIVE)
    return [*side_cells(profile, BASELINE, profile.small_batch), *side_cells(profile, large, profile.large_batch)]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare time and accuracy without each part."""
    best = best_runs(frame)
    claim = c11(best)
    table = Tabulation(
        "",
        table_by_task(frame, best, INDEX, profile.tasks, ("train_seconds", "forward_passes", "score")),
        f"Table 3: ScaLA at B={profile.large_batch} without each of its parts.",
        [
            *notes(profile, frame, best, timed=True),
            "Without PGA-1 the step is LAMB's to the bit, so that row is LAMB's runs. Without group-wise rates the "
            "optimizer is AdamW on its own grid.",
        ],
    )
    caption = "Table 3: accuracy of ScaLA without each of its parts; marks are seeds, bars standard deviations."
    figures = [Drawing("", dots_figure(best, title="ScaLA without its parts"), caption)] if len(best) else []
    passes, _, delay, groups, noise = (part.estimate for part in claim.parts)
    summary = (
        f"Without delay: {passes} the forward passes and {delay}; without group-wise rates {groups}; without PGA-1 "
        f"{noise}."
    )
    return Findings([table, paper_table(3, TABLE_3, INDEX)], figures, [claim], summary)


def c11(best: DataFrame) -> ClaimRecord:
    """Compare the variants without delay, without group-wise rates and without PGA-1 with ScaLA."""
    parts = [
        *cost_parts(best, "without delay", SLOWER_WITHOUT_DELAY),
        within("accuracy without delay minus ScaLA", difference(best, "without delay", "ScaLA"), -EQUAL, EQUAL),
        below("accuracy without group-wise rates minus ScaLA", difference(best, "without group-wise rates", "ScaLA")),
        below("accuracy without PGA-1 minus ScaLA", difference(best, "without PGA-1", "ScaLA")),
    ]
    return record(C11, parts)


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
