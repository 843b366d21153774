"""Table 3: what does each part of ScaLA contribute, and what does it cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.claims.accuracy import c11
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

STUDY = Study(
    name="ablation",
    title="Parts of ScaLA",
    question="What does each part of ScaLA contribute, and what does it cost?",
    cells=cells,
    analyse=analyse,
    source="Table 3",
    paper_found="Without delay 1.5 to 1.9 times slower for +0.1 points; without group-wise rates -0.2; without PGA-1 "
    "-0.8, which is LAMB's row to the digit.",
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
