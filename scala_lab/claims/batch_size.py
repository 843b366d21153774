"""Claims on how rates and accuracy change with the batch size: C3, C4, C16 and C18.

Frames have one row per run: task, seed, batch_size, score (percent), and rate or method where the claim needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.study.statistics import mean_interval, slope_interval
from scala_lab.study.verdicts import (
    EQUAL,
    PAIRS,
    Claim,
    ClaimRecord,
    above,
    below,
    difference,
    mean_slope,
    record,
    within,
)

if TYPE_CHECKING:
    import pandas as pd

ABOUT_SQRT = (0.25, 0.75)
"""Exponents of B that count as about a square root: nearer to 1/2 than to a constant rate or to the linear rule."""

C3 = Claim(
    id="C3",
    source="Figure 1(b)",
    study="generalizability",
    statement="The best learning rate grows about with the square root of the batch size.",
    paper="roughly sqrt(B) over B = 1K to 8K, not always",
    rule="The exponent of B in the best rate, found per batch size and seed from a parabola through the best cell and "
    "its neighbours, within {} to {}.".format(*ABOUT_SQRT),
)

C4 = Claim(
    id="C4",
    source="Figure 1(b)",
    study="generalizability",
    statement="Large batches are less accurate than the small one at their best rates, the more so the larger.",
    paper="the gap to B=32 grows from 1K to 8K",
    rule="The gap to the small batch above 0 on average over the large ones, and its slope per doubling above 0.",
)

C16 = Claim(
    id="C16",
    source="Figure 7",
    study="batch_sizes",
    statement="Accuracy falls as the batch grows, and ScaLA stays above LAMB and the baseline at every large batch.",
    paper="at 8K: 84.4 / 83.9 / 83.5 (MNLI), 92.6 / 91.7 / 91.3 (SST-2) for ScaLA / LAMB / baseline",
    rule="Slope of the baseline's accuracy per doubling of B below 0; ScaLA minus LAMB and ScaLA minus baseline over "
    "all large batches above 0.",
)

C18 = Claim(
    id="C18",
    source="Table 6",
    study="lr_scaling",
    statement="For ScaLA the square-root rule serves as well as tuning the rate.",
    paper="89.7 by rule, 89.4 tuned",
    rule=f"ScaLA by rule minus ScaLA tuned above -{EQUAL} points.",
)


def c3(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: the whole grid, with batch_size, rate, seed and score (nan where a run diverged)."""
    best = best_rates(frame)
    exponent = slope_interval(np.log(best["batch_size"].astype(float)), np.log(best["rate"].astype(float)))
    return record(C3, [within("exponent of B in the best rate", exponent, *ABOUT_SQRT)])


def best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """The best rate of each batch size and seed, columns batch_size, seed and rate.

    Where the best cell has neighbours on both sides, the rate is that of the top of the parabola through the three,
    over log rate; at the edge of the grid it is the cell's own.
    """
    import pandas as pd

    rows = []
    for (batch_size, seed), cells in frame.dropna(subset=["score"]).groupby(["batch_size", "seed"]):
        ordered = cells.sort_values("rate")
        rates, scores = ordered["rate"].to_numpy(float), ordered["score"].to_numpy(float)
        rows.append({"batch_size": batch_size, "seed": seed, "rate": _top(rates, scores)})
    return pd.DataFrame(rows, columns=["batch_size", "seed", "rate"])


def _top(rates: np.ndarray, scores: np.ndarray) -> float:
    best = int(scores.argmax())
    if not 0 < best < len(rates) - 1:
        return float(rates[best])
    near = slice(best - 1, best + 2)
    square, line, _ = np.polyfit(np.log(rates[near]), scores[near], 2)
    if square >= 0:
        return float(rates[best])
    return float(np.clip(np.exp(-line / (2 * square)), rates[best - 1], rates[best + 1]))


def c4(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: batch_size, seed and score at each batch size's best rate; the smallest is the small batch."""
    small = frame[frame["batch_size"] == frame["batch_size"].min()].set_index("seed")["score"]
    large = frame[frame["batch_size"] > frame["batch_size"].min()]
    gap = large["seed"].map(small) - large["score"]
    slope = slope_interval(np.log2(large["batch_size"].astype(float)), gap)
    return record(
        C4,
        [
            above("gap of large batches to the small one", mean_interval(gap, "points")),
            above("slope of the gap per doubling of B, in points", slope),
        ],
    )


def c16(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods baseline, LAMB and ScaLA over batch_size; the smallest is the small batch."""
    baseline = frame[frame["method"] == "baseline"]
    baseline = baseline.assign(doublings=np.log2(baseline["batch_size"].astype(float)))
    large = frame[frame["batch_size"] > frame["batch_size"].min()]
    pairs = (*PAIRS, "batch_size")
    return record(
        C16,
        [
            below("slope of the baseline per doubling of B", mean_slope(baseline, "doublings")),
            above("ScaLA minus LAMB at large batches", difference(large, "ScaLA", "LAMB", pairs=pairs)),
            above("ScaLA minus baseline at large batches", difference(large, "ScaLA", "baseline", pairs=pairs)),
        ],
    )


def c18(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA, rule and ScaLA, tuned at the large batch size."""
    return record(
        C18, [above("ScaLA by rule minus ScaLA tuned", difference(frame, "ScaLA, rule", "ScaLA, tuned"), -EQUAL)]
    )


RULES = ((C3, c3), (C4, c4), (C16, c16), (C18, c18))
