"""Claims on accuracy and cost of methods at one batch size: C9 to C13, and C15.

Frames have one row per run at its method's best rate: model, task, seed, method, score (percent) and, where cost is
judged, forward_passes (over the training rows, a backward counted as two), train_seconds and workers.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, Part, above, below, difference, ratio, record, within

if TYPE_CHECKING:
    import pandas as pd

QUARTER = 1.25
"""How far a measured factor may lie outside of the paper's range: other machines weigh passes differently."""

PAPER_WORKERS = 32
LEAST_SPEEDUP = 2.7

C9 = Claim(
    id="C9",
    source="Table 1",
    study="main_results",
    statement="ScaLA with large batches is 2.7 to 9.8 times faster than the small-batch baseline on the same workers, "
    "at equal average accuracy.",
    paper="2.7-9.8x on 32 GPUs; average 89.4 against 89.4 (BERT), 92.9 against 92.5 (RoBERTa)",
    rule=f"Accuracy: ScaLA minus baseline above -{EQUAL} points. Time: baseline over ScaLA above {LEAST_SPEEDUP}. "
    f"On fewer than {PAPER_WORKERS} workers, where there is less communication to save, a smaller ratio decides "
    "nothing.",
)

C10 = Claim(
    id="C10",
    source="Table 2",
    study="large_batch_methods",
    statement="At one large batch size ScaLA is more accurate than LAMB and the baseline, and LAMB no worse than the "
    "baseline.",
    paper="89.4 / 88.6 / 88.4 (BERT), 92.9 / 92.1 / 92.1 (RoBERTa)",
    rule=f"ScaLA minus LAMB above 0, ScaLA minus baseline above 0, LAMB minus baseline above -{EQUAL} points.",
)

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

C13 = Claim(
    id="C13",
    source="Table 5",
    study="perturbation_kinds",
    statement="Noise along the label probability helps more than noise along the true label, that more than Gaussian "
    "noise, and that more than none.",
    paper="89.4 / 89.0 / 88.7 / 88.4",
    rule="Each of the three differences in that order above 0.",
)

C15 = Claim(
    id="C15",
    source="Figure 6",
    study="train_longer",
    statement="Training the large-batch baseline for twice the epochs does not reach ScaLA's accuracy.",
    paper="below 84 after 12 epochs against 85.2 after 6 (MNLI, B=2K)",
    rule="ScaLA minus the baseline trained longer above 0.",
)


def c9(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods baseline (small batch) and ScaLA (large), on the same number of workers."""
    faster = above(
        "time of the baseline over ScaLA's", ratio(frame, "baseline", "ScaLA", value="train_seconds"), LEAST_SPEEDUP
    )
    workers = int(frame["workers"].max()) if frame["workers"].notna().any() else 0
    if workers < PAPER_WORKERS and faster.verdict == "contradicted":
        faster = replace(faster, verdict="inconclusive")
    faster = replace(faster, statement=f"{faster.statement} on {workers} worker{'s' * (workers != 1)}")
    equal = above("accuracy of ScaLA minus baseline", difference(frame, "ScaLA", "baseline"), -EQUAL)
    return record(C9, [equal, faster])


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


def c12(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods FreeLB and ScaLA at the large batch size."""
    equal = within("accuracy of FreeLB minus ScaLA", difference(frame, "FreeLB", "ScaLA"), -EQUAL, EQUAL)
    return record(C12, [equal, *_slower(frame, "FreeLB", SLOWER_THAN_SCALA)])


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


def c15(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA and baseline, longer."""
    longer = difference(frame, "ScaLA", "baseline, longer")
    return record(C15, [above("ScaLA minus the baseline trained longer", longer)])


def _slower(frame: pd.DataFrame, method: str, limits: tuple[float, float]) -> list[Part]:
    """A method's cost over ScaLA's, by count and by clock."""
    return [
        within(f"{what} of {method} over ScaLA", ratio(frame, method, "ScaLA", value=value), *limits)
        for what, value in (("forward passes", "forward_passes"), ("seconds", "train_seconds"))
    ]


RULES = ((C9, c9), (C10, c10), (C11, c11), (C12, c12), (C13, c13), (C15, c15))
