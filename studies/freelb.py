"""Table 4: is ScaLA as accurate as FreeLB, and how much faster?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.study import Cell, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, EFFECTIVE, FREELB, SCALA, side_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, difference, record, within
from studies._paper_tables import TABLE_4, paper_frame
from studies.ablation import QUARTER, _slower

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

INDEX = ("method", "batch size")


def cells(profile: Profile) -> list[Cell]:
    """The small-batch baseline, FreeLB and ScaLA on two tasks."""
    large = [(row, profile.large_batch) for row in (FREELB, SCALA, EFFECTIVE)]
    return [
        cell
        for row, batch_size in [(BASELINE, profile.small_batch), *large]
        for cell in side_cells(profile, row, batch_size, profile.pair, seeds=profile.seeds)
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Accuracy and time."""
    frame = frame.rename(columns={"batch_size": "batch size"})
    best = best_runs(frame)
    claim = c12(best)
    tables = [
        Tabulation(
            "",
            table_by_task(frame, best, INDEX, profile.pair, ("score", "train_seconds", "forward_passes")),
            f"Table 4: accuracy (%) and time of FreeLB and ScaLA at B={profile.large_batch}.",
            [
                *notes(profile, frame, best, timed=True),
                "FreeLB with 3 passes and the settings its authors published for each task, found for RoBERTa-large; "
                "AdamW, as there.",
            ],
        ),
        Tabulation(
            "paper",
            paper_frame(TABLE_4, INDEX, ("MNLI-m", "SST-2")),
            "Table 4 as the paper has it.",
            [
                "The baseline's time is that of 32 GPUs for MNLI and that of one GPU for SST-2 (Table 1: 1494 on 32).",
            ],
        ),
    ]
    accuracy, passes, seconds = (part.estimate for part in claim.parts)
    found = f"FreeLB differs from ScaLA by {accuracy}, at {passes} the forward passes and {seconds} the time."
    return Findings(tables, (), [claim], found)


SLOWER_THAN_SCALA = (2.6 / QUARTER, 2.9 * QUARTER)

C12 = Claim(
    id="C12",
    source="Table 4",
    study="freelb",
    statement="FreeLB is as accurate as ScaLA and 2.6 to 2.9 times slower.",
    paper="85.1 against 85.1 (MNLI), 93.3 against 93.5 (SST-2); 2.9x, 2.6x",
    rule="FreeLB minus ScaLA within {} points; cost of FreeLB over ScaLA, in forward passes and in seconds, within "
    "{:.3g} to {:.3g}.".format(EQUAL, *SLOWER_THAN_SCALA),
)


def c12(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods FreeLB and ScaLA at the large batch size."""
    equal = within("accuracy of FreeLB minus ScaLA", difference(frame, "FreeLB", "ScaLA"), -EQUAL, EQUAL)
    return record(C12, [equal, *_slower(frame, "FreeLB", SLOWER_THAN_SCALA)])


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
