"""Table 3: what does each part of ScaLA contribute, and what does it cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import (
    BASELINE,
    EFFECTIVE,
    SCALA,
    WITHOUT_DELAY,
    WITHOUT_GROUPS,
    WITHOUT_NOISE,
    side_cells,
)
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, Part, below, difference, ratio, record, within
from studies._paper_tables import TABLE_3, paper_frame

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

INDEX = ("method", "batch size")


def cells(profile: Profile) -> list[Cell]:
    """The small-batch baseline, ScaLA, and ScaLA without each of its parts."""
    large = (SCALA, WITHOUT_DELAY, WITHOUT_GROUPS, WITHOUT_NOISE, EFFECTIVE)
    return [
        *side_cells(profile, BASELINE, profile.small_batch),
        *(cell for row in large for cell in side_cells(profile, row, profile.large_batch)),
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Time and accuracy without each part."""
    frame = frame.rename(columns={"batch_size": "batch size"})
    best = best_runs(frame)
    claim = c11(best)
    tables = [
        Tabulation(
            "",
            table_by_task(frame, best, INDEX, profile.tasks, ("train_seconds", "forward_passes", "score")),
            f"Table 3: ScaLA at B={profile.large_batch} without each of its parts.",
            [
                *notes(profile, frame, best, timed=True),
                "Without PGA-1 the step is LAMB's to the bit, so that row is LAMB's runs. Without group-wise rates the "
                "optimizer is AdamW on its own grid.",
            ],
        ),
        Tabulation("paper", paper_frame(TABLE_3, INDEX), "Table 3 as the paper has it."),
    ]
    figures = [Drawing("", dots_figure(best, title="ScaLA without its parts"), _CAPTION)] if len(best) else []
    passes, _, delay, groups, noise = (part.estimate for part in claim.parts)
    found = (
        f"Without delay: {passes} the forward passes and {delay}; without group-wise rates {groups}; without PGA-1 "
        f"{noise}."
    )
    return Findings(tables, figures, [claim], found)


_CAPTION = "Table 3: accuracy of ScaLA without each of its parts; marks are seeds, bars standard deviations."

QUARTER = 1.25
"""How far a measured factor may lie outside of the paper's range: other machines weigh passes differently."""

SLOWER_WITHOUT_DELAY = (1.5 / QUARTER, 1.9 * QUARTER)

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


def c11(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA, without delay, without group-wise rates and without PGA-1."""
    return record(
        C11,
        [
            *_slower(frame, "without delay", SLOWER_WITHOUT_DELAY),
            within("accuracy without delay minus ScaLA", difference(frame, "without delay", "ScaLA"), -EQUAL, EQUAL),
            below(
                "accuracy without group-wise rates minus ScaLA", difference(frame, "without group-wise rates", "ScaLA")
            ),
            below("accuracy without PGA-1 minus ScaLA", difference(frame, "without PGA-1", "ScaLA")),
        ],
    )


def _slower(frame: pd.DataFrame, method: str, limits: tuple[float, float]) -> list[Part]:
    """A method's cost over ScaLA's, by count and by clock."""
    return [
        within(f"{what} of {method} over ScaLA", ratio(frame, method, "ScaLA", value=value), *limits)
        for what, value in (("forward passes", "forward_passes"), ("seconds", "train_seconds"))
    ]


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
