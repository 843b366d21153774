"""Table 2: which method is most accurate at one large batch size?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, EFFECTIVE, LAMB, SCALA, tuned_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, above, difference, record
from studies._paper_tables import TABLE_2, paper_frame

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

INDEX = ("model", "method", "batch size")


def cells(profile: Profile) -> list[Cell]:
    """Every method on the same number of rates, for every model of the profile."""
    return [
        cell
        for model in profile.models
        for row in (BASELINE, LAMB, SCALA, EFFECTIVE)
        for cell in tuned_cells(profile, row, profile.large_batch, models=[model])
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Steps, time and accuracy by method."""
    frame = frame.rename(columns={"batch_size": "batch size"})
    best = best_runs(frame)
    claim = c10(best)
    tables = [
        Tabulation(
            "",
            table_by_task(frame, best, INDEX, profile.tasks, ("steps", "train_seconds", "score")),
            f"Table 2: steps, time and accuracy (%) of large-batch methods at B={profile.large_batch}.",
            notes(profile, frame, best, timed=True),
        ),
        Tabulation("paper", paper_frame(TABLE_2, INDEX), "Table 2 as the paper has it."),
    ]
    figures = [
        Drawing(
            "" if model == profile.models[0] else model.rpartition("/")[2].replace("-", "_"),
            dots_figure(runs, title=f"Methods at B={profile.large_batch}, {model}"),
            f"Table 2: accuracy by method and task, {model}; marks are seeds, bars standard deviations.",
        )
        for model, runs in best.groupby("model", sort=False)
    ]
    over_lamb, over_baseline, _ = (part.estimate for part in claim.parts)
    found = f"ScaLA differs from LAMB by {over_lamb} and from the baseline by {over_baseline}."
    return Findings(tables, figures, [claim], found)


C10 = Claim(
    id="C10",
    source="Table 2",
    study="large_batch_methods",
    statement="At one large batch size ScaLA is more accurate than LAMB and the baseline, and LAMB no worse than the "
    "baseline.",
    paper="89.4 / 88.6 / 88.4 (BERT), 92.9 / 92.1 / 92.1 (RoBERTa)",
    rule=f"ScaLA minus LAMB above 0, ScaLA minus baseline above 0, LAMB minus baseline above -{EQUAL} points.",
)


def c10(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods baseline, LAMB and ScaLA at the large batch size."""
    return record(
        C10,
        [
            above("ScaLA minus LAMB", difference(frame, "ScaLA", "LAMB")),
            above("ScaLA minus baseline", difference(frame, "ScaLA", "baseline")),
            above("LAMB minus baseline", difference(frame, "LAMB", "baseline"), -EQUAL),
        ],
    )


STUDY = Study(
    name="large_batch_methods",
    title="Large-batch methods",
    question="Which method is most accurate at one large batch size?",
    cells=cells,
    analyse=analyse,
    source="Table 2",
    paper_found="Averages at B=1K: ScaLA 89.4, LAMB 88.6, baseline 88.4 (BERT-base); 92.9, 92.1, 92.1 (RoBERTa-large).",
    claims=(C10,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
