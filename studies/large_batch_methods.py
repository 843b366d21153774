"""Table 2: which method is most accurate at one large batch size?"""

from __future__ import annotations

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, EFFECTIVE, LAMB, SCALA, tuned_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, above, difference, record
from studies._paper_tables import TABLE_2, paper_table

INDEX = ("model", "method", "batch_size")
METHODS = (BASELINE, LAMB, SCALA, EFFECTIVE)

C10 = Claim(
    id="C10",
    source="Table 2",
    study="large_batch_methods",
    statement="At one large batch size ScaLA is more accurate than LAMB and the baseline, and LAMB no worse than the "
    "baseline.",
    paper="89.4 / 88.6 / 88.4 (BERT), 92.9 / 92.1 / 92.1 (RoBERTa)",
    rule=f"ScaLA minus LAMB above 0, ScaLA minus baseline above 0, LAMB minus baseline above -{EQUAL} points.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return every method on the same number of rates, for every model of the profile."""
    return [
        cell for model in profile.models for cell in tuned_cells(profile, METHODS, profile.large_batch, models=[model])
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare steps, time and accuracy by method."""
    best = best_runs(frame)
    claim = c10(best)
    table = Tabulation(
        "",
        table_by_task(frame, best, INDEX, profile.tasks, ("steps", "train_seconds", "score")),
        f"Table 2: steps, time and accuracy (%) of large-batch methods at B={profile.large_batch}.",
        notes(profile, frame, best, timed=True),
    )
    figures = [
        Drawing(
            "" if model == profile.models[0] else model.rpartition("/")[2].replace("-", "_"),
            dots_figure(runs, title=f"Methods at B={profile.large_batch}, {model}"),
            f"Table 2: accuracy by method and task, {model}; marks are seeds, bars standard deviations.",
        )
        for model, runs in best.groupby("model", sort=False)
    ]
    over_lamb, over_baseline, _ = (part.estimate for part in claim.parts)
    summary = f"ScaLA differs from LAMB by {over_lamb} and from the baseline by {over_baseline}."
    return Findings([table, paper_table(2, TABLE_2, INDEX)], figures, [claim], summary)


def c10(best: DataFrame) -> ClaimRecord:
    """Compare the scores of baseline, LAMB and ScaLA at the large batch size, paired by model, task and seed."""
    parts = [
        above("ScaLA minus LAMB", difference(best, "ScaLA", "LAMB")),
        above("ScaLA minus baseline", difference(best, "ScaLA", "baseline")),
        above("LAMB minus baseline", difference(best, "LAMB", "baseline"), -EQUAL),
    ]
    return record(C10, parts)


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
