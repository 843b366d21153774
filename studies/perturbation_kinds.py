"""Table 5: does the direction of the noise matter: none, random, along the true label, along the prediction?"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import (
    BASELINE,
    EFFECTIVE,
    GAUSSIAN,
    LAMB,
    ONE_DRAW,
    RDROP,
    SCALA,
    SCALA_GT,
    TWO_DRAWS,
    side_cells,
)
from scala_lab.study.verdicts import Claim, ClaimRecord, above, difference, record
from studies._paper_tables import TABLE_5, paper_frame

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

SCALA_LP = SCALA.named("ScaLA (LP)")


def cells(profile: Profile) -> list[Cell]:
    """The paper's four rows, then LAMB without noise, our two controls, noise that acts, and R-Drop."""
    rows = (BASELINE, GAUSSIAN, SCALA_GT, SCALA_LP, LAMB, TWO_DRAWS, ONE_DRAW, EFFECTIVE)
    return [
        *(cell for row in rows for cell in side_cells(profile, row, profile.large_batch)),
        *side_cells(profile, RDROP, profile.large_batch, profile.pair),
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Accuracy by kind of noise."""
    best = best_runs(frame)
    claim = c13(best)
    tables = [
        Tabulation(
            "",
            table_by_task(frame, best, ("method",), profile.tasks),
            f"Table 5: accuracy (%) by kind of perturbation at B={profile.large_batch}.",
            [
                *notes(profile, frame, best),
                "The baseline is AdamW, all other rows LAMB. Beyond the paper: LAMB without noise; 'two draws, no "
                "noise': the divergence of two dropout draws alone; 'noise, one draw': the paper's noise with shared "
                "masks; ScaLA-effective: noise large enough to act; R-Drop as published: two draws from the first "
                "step on, which both learn the task.",
            ],
        ),
        Tabulation("paper", paper_frame(TABLE_5, ("method",)), "Table 5 as the paper has it."),
    ]
    figures = [Drawing("", dots_figure(best, title="Kinds of perturbation"), _CAPTION)] if len(best) else []
    target, direction, random = (part.estimate for part in claim.parts)
    found = f"LP minus GT {target}; GT minus Gaussian {direction}; Gaussian minus none {random}."
    return Findings(tables, figures, [claim], found)


_CAPTION = "Table 5: accuracy by kind of perturbation; marks are seeds, bars standard deviations."

C13 = Claim(
    id="C13",
    source="Table 5",
    study="perturbation_kinds",
    statement="Noise along the label probability helps more than noise along the true label, that more than Gaussian "
    "noise, and that more than none.",
    paper="89.4 / 89.0 / 88.7 / 88.4",
    rule="Each of the three differences in that order above 0.",
)


def c13(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA (LP), ScaLA (GT), Gaussian noise and baseline."""
    order = ("ScaLA (LP)", "ScaLA (GT)", "Gaussian noise", "baseline")
    return record(
        C13,
        [
            above(f"{better} minus {worse}", difference(frame, better, worse))
            for better, worse in itertools.pairwise(order)
        ],
    )


STUDY = Study(
    name="perturbation_kinds",
    title="Kinds of perturbation",
    question="Does the direction of the noise matter: none, random, along the true label, along the prediction?",
    cells=cells,
    analyse=analyse,
    source="Table 5",
    paper_found="Averages: LP 89.4, GT 89.0, Gaussian 88.7, none 88.4.",
    claims=(C13,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
