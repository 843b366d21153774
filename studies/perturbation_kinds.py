"""Table 5: does the direction of the noise matter: none, random, along the true label, along the prediction?"""

from __future__ import annotations

import itertools

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, EFFECTIVE, GAUSSIAN, LAMB, ONE_DRAW, RDROP, SCALA, TWO_DRAWS, side_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, above, difference, record
from studies._paper_tables import TABLE_5, paper_table

SCALA_LP = SCALA.named("ScaLA (LP)")
SCALA_GT = SCALA.but("ScaLA (GT)", target="GT")
PAPER_ROWS = (BASELINE, GAUSSIAN, SCALA_GT, SCALA_LP)

C13 = Claim(
    id="C13",
    source="Table 5",
    study="perturbation_kinds",
    statement="Noise along the label probability helps more than noise along the true label, that more than Gaussian "
    "noise, and that more than none.",
    paper="89.4 / 89.0 / 88.7 / 88.4",
    rule="Each of the three differences in that order above 0.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the paper's four rows, then LAMB without noise, our two controls, noise that acts, and R-Drop."""
    return [
        *side_cells(profile, (*PAPER_ROWS, LAMB, TWO_DRAWS, ONE_DRAW, EFFECTIVE), profile.large_batch),
        *side_cells(profile, RDROP, profile.large_batch, profile.pair),
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy by kind of noise."""
    best = best_runs(frame)
    claim = c13(best)
    table = Tabulation(
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
    )
    caption = "Table 5: accuracy by kind of perturbation; marks are seeds, bars standard deviations."
    figures = [Drawing("", dots_figure(best, title="Kinds of perturbation"), caption)] if len(best) else []
    target, direction, random = (part.estimate for part in claim.parts)
    summary = f"LP minus GT {target}; GT minus Gaussian {direction}; Gaussian minus none {random}."
    return Findings([table, paper_table(5, TABLE_5, ("method",))], figures, [claim], summary)


def c13(best: DataFrame) -> ClaimRecord:
    """Compare each of the paper's rows with the next weaker one: ScaLA (LP), ScaLA (GT), Gaussian noise, baseline."""
    methods = [variant.method for variant in reversed(PAPER_ROWS)]
    parts = [
        above(f"{better} minus {worse}", difference(best, better, worse))
        for better, worse in itertools.pairwise(methods)
    ]
    return record(C13, parts)


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
