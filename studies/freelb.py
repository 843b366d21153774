"""Table 4: is ScaLA as accurate as FreeLB, and how much faster?"""

from __future__ import annotations

from scala_lab.study import Cell, DataFrame, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, EFFECTIVE, FREELB, SCALA, side_cells
from scala_lab.study.verdicts import EQUAL, SLACK, Claim, ClaimRecord, cost_parts, difference, record, within
from studies._paper_tables import TABLE_4, paper_table

INDEX = ("method", "batch_size")
PAPER_NOTE = "The baseline's time is that of 32 GPUs for MNLI and that of one GPU for SST-2 (Table 1: 1494 on 32)."
SLOWER_THAN_SCALA = (2.6 / SLACK, 2.9 * SLACK)

C12 = Claim(
    id="C12",
    source="Table 4",
    study="freelb",
    statement="FreeLB is as accurate as ScaLA and 2.6 to 2.9 times slower.",
    paper="85.1 against 85.1 (MNLI), 93.3 against 93.5 (SST-2); 2.9x, 2.6x",
    rule="FreeLB minus ScaLA within {} points; cost of FreeLB over ScaLA, in forward passes and in seconds, within "
    "{:.3g} to {:.3g}.".format(EQUAL, *SLOWER_THAN_SCALA),
)


def cells(profile: Profile) -> list[Cell]:
    """Return the small-batch baseline, FreeLB and ScaLA on two tasks."""
    return [
        *side_cells(profile, BASELINE, profile.small_batch, profile.pair, seeds=profile.seeds),
        *side_cells(profile, (FREELB, SCALA, EFFECTIVE), profile.large_batch, profile.pair, seeds=profile.seeds),
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and time."""
    best = best_runs(frame)
    claim = c12(best)
    table = Tabulation(
        "",
        table_by_task(frame, best, INDEX, profile.pair, ("score", "train_seconds", "forward_passes")),
        f"Table 4: accuracy (%) and time of FreeLB and ScaLA at B={profile.large_batch}.",
        [
            *notes(profile, frame, best, timed=True),
            "FreeLB with 3 passes and the settings its authors published for each task, found for RoBERTa-large; "
            "AdamW, as there.",
        ],
    )
    accuracy, passes, seconds = (part.estimate for part in claim.parts)
    summary = f"FreeLB differs from ScaLA by {accuracy}, at {passes} the forward passes and {seconds} the time."
    return Findings([table, paper_table(4, TABLE_4, INDEX, ("MNLI-m", "SST-2"), [PAPER_NOTE])], (), [claim], summary)


def c12(best: DataFrame) -> ClaimRecord:
    """Compare accuracy, forward_passes and train_seconds of FreeLB with ScaLA's at the large batch size."""
    equal = within("accuracy of FreeLB minus ScaLA", difference(best, "FreeLB", "ScaLA"), -EQUAL, EQUAL)
    return record(C12, [equal, *cost_parts(best, "FreeLB", SLOWER_THAN_SCALA)])


STUDY = Study(
    name="freelb",
    title="FreeLB",
    question="Is ScaLA as accurate as FreeLB, and how much faster?",
    cells=cells,
    analyse=analyse,
    source="Table 4",
    paper_found="MNLI 85.1 both, SST-2 93.3 against ScaLA's 93.5; FreeLB takes 2.9 and 2.6 times as long.",
    claims=(C12,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
