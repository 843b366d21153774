"""Claims on sharpness: the top eigenvalue of the Hessian at the end of training, and its deviation.

Frames have one row per run: task, method (small batch, large batch, LAMB, ScaLA, ScaLA-effective), seed, eigenvalue
(mean over disjoint sets of rows), deviation (standard deviation over them; nan for one set) and converged. Runs whose
eigenvalue did not converge are left out: the number is not one of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.verdicts import Claim, ClaimRecord, above, record

if TYPE_CHECKING:
    import pandas as pd

SMALL, LARGE, SCALA = "small batch", "large batch", "ScaLA"

C5 = Claim(
    id="C5",
    source="Figure 1(c), Section 3",
    study="sharpness",
    statement="A model trained with a large batch ends in a sharper place than one trained with a small batch, and its "
    "sharpness varies more between samples.",
    paper="top eigenvalue 2.6x, deviation 3.9x",
    rule="Ratios large over small batch, paired by seed: reproduced if the intervals of both lie above 1, "
    "contradicted if one lies below 1.",
)

C6 = Claim(
    id="C6",
    source="Figure 1(c), Section 5",
    study="sharpness",
    statement="ScaLA ends in a place much less sharp than the large-batch baseline does, and a little less sharp than "
    "the small-batch baseline.",
    paper="6.9x smaller than at the large batch; slightly below the small batch",
    rule="Ratios large batch over ScaLA and small batch over ScaLA, paired by seed: reproduced if the intervals of "
    "both lie above 1, contradicted if one lies below 1.",
)


def c5(frame: pd.DataFrame) -> ClaimRecord:
    """Large batch against small batch."""
    return record(
        C5,
        [
            above("eigenvalue, large over small batch", _ratio(frame, "eigenvalue", LARGE, SMALL), 1.0),
            above("deviation, large over small batch", _ratio(frame, "deviation", LARGE, SMALL), 1.0),
        ],
    )


def c6(frame: pd.DataFrame) -> ClaimRecord:
    """ScaLA against both."""
    return record(
        C6,
        [
            above("eigenvalue, large batch over ScaLA", _ratio(frame, "eigenvalue", LARGE, SCALA), 1.0),
            above("eigenvalue, small batch over ScaLA", _ratio(frame, "eigenvalue", SMALL, SCALA), 1.0),
        ],
    )


def _ratio(frame: pd.DataFrame, value: str, left: str, right: str) -> Estimate:
    sure = frame[frame["converged"].astype(bool)]
    pairs = paired_columns(sure[["task", "seed", "method", value]], value, "method", left, right)
    return paired_ratio(pairs["left"], pairs["right"])


RULES = ((C5, c5), (C6, c6))
