"""Claims on the noise itself: how many ascent steps it needs (C8), when it should start (C17), what acts (C21).

Frames have one row per run: task, seed, score (percent), and pga_steps with forward_passes and train_seconds, or
delay (in epochs, inf for never), or method with divergence (mean r of the last step).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from scala_lab.study.statistics import Estimate, paired_ratio
from scala_lab.study.verdicts import (
    EQUAL,
    PAIRS,
    Claim,
    ClaimRecord,
    above,
    below,
    difference,
    mean_slope,
    ratio,
    record,
    within,
)

if TYPE_CHECKING:
    import pandas as pd

STEADY = (0.8, 1.25)
"""Ratio of two costs, or of two divergences, that count as the same."""
SMALL_SHARE = 0.1
"""Share of the divergence below which its source does not matter."""

C8 = Claim(
    id="C8",
    source="Figure 4",
    study="perturbation_steps",
    statement="More than one ascent step costs linearly more and gains no accuracy.",
    paper="cost grows almost linearly with T; the best accuracy is at T=1 (QNLI)",
    rule="Forward passes that a further step adds at the largest T over those at the smallest within {} to {}; seconds "
    "added per step, relative to T=1, above 0; accuracy at T>1 minus that at T=1 below {} points.".format(
        *STEADY, EQUAL
    ),
)

C17 = Claim(
    id="C17",
    source="Figure 8",
    study="switch_point",
    statement="Noise from the start gains little, noise from a middle t_s on gains most, noise too late loses again.",
    paper="accuracy rises with t_s and falls when it is late (MNLI, SST-2)",
    rule=f"Noise from the start minus none below {EQUAL} points; the mean over all t_s between the first and the last "
    "minus t_s=0 above 0, and minus the last t_s above 0.",
)

C21 = Claim(
    id="C21",
    source="ours, on Section 5 and the appendix on hyperparameters",
    study="dropout_confound",
    statement="With the paper's rho and omega, what regularises is that two passes draw different dropout masks, not "
    "the noise.",
    paper="rho 1e-4 and omega 1e-5, dropout not spoken of",
    rule=f"Without noise but with two draws, accuracy within {EQUAL} points of ScaLA's and divergence within "
    f"{STEADY[0]} to {STEADY[1]} of it; with noise but one draw, accuracy within {EQUAL} points of LAMB's and "
    f"divergence below {SMALL_SHARE} of ScaLA's.",
)


def c8(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: one recipe over pga_steps."""
    first = _at_first_step(frame, "train_seconds")
    relative = frame.assign(relative=frame["train_seconds"] / first)
    gain = frame.assign(many=np.where(frame["pga_steps"] > 1, "T>1", "T=1"))
    gain = gain.groupby([*_pairs(gain), "many"], as_index=False)["score"].mean()
    seconds = mean_slope(relative, "pga_steps", "relative")
    return record(
        C8,
        [
            within("cost of the last further step over that of the first", _steadiness(frame), *STEADY),
            above("seconds added per step, relative to T=1", _plain(seconds)),
            below("accuracy at T>1 minus T=1", difference(gain, "T>1", "T=1", column="many"), EQUAL),
        ],
    )


def _pairs(frame: pd.DataFrame) -> list[str]:
    return [name for name in PAIRS if name in frame.columns]


def _at_first_step(frame: pd.DataFrame, value: str) -> pd.Series:
    """The value that each row's pair has at the smallest T."""
    import pandas as pd

    keys = _pairs(frame)
    one = frame[frame["pga_steps"] == frame["pga_steps"].min()].set_index(keys)[value]
    return pd.Series(one.reindex(pd.MultiIndex.from_frame(frame[keys])).to_numpy(), index=frame.index)


def _steadiness(frame: pd.DataFrame) -> Estimate:
    """Passes per further step between the two largest T, over those between the two smallest."""
    wide = frame.pivot_table("forward_passes", _pairs(frame), "pga_steps")
    steps = sorted(wide.columns)
    if len(steps) < 3:
        return paired_ratio([], [])
    added = [(wide[high] - wide[low]) / (high - low) for low, high in ((steps[-2], steps[-1]), (steps[0], steps[1]))]
    return paired_ratio(*added)


def _plain(estimate: Estimate) -> Estimate:
    return Estimate(estimate.value, estimate.low, estimate.high, estimate.n, estimate.effect_size)


def c17(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: one recipe over delay; inf stands for no noise at all."""
    delays = frame["delay"].astype(float)
    last = delays[np.isfinite(delays)].max()
    names = {0.0: "start", last: "late", math.inf: "never"}
    phase = delays.map(lambda delay: names.get(delay, "middle"))
    by_phase = frame.assign(phase=phase).groupby([*_pairs(frame), "phase"], as_index=False)["score"].mean()
    return record(
        C17,
        [
            below("noise from the start minus none", difference(by_phase, "start", "never", column="phase"), EQUAL),
            above("middle t_s minus the start", difference(by_phase, "middle", "start", column="phase")),
            above("middle t_s minus the last", difference(by_phase, "middle", "late", column="phase")),
        ],
    )


def c21(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA, two draws without noise, noise with one draw, LAMB."""
    scala, draws, one_draw = "ScaLA", "two draws, no noise", "noise, one draw"
    r = {"value": "divergence"}
    return record(
        C21,
        [
            within("accuracy of ScaLA minus two draws without noise", difference(frame, scala, draws), -EQUAL, EQUAL),
            within("divergence of two draws without noise over ScaLA's", ratio(frame, draws, scala, **r), *STEADY),
            within("accuracy of noise with one draw minus LAMB", difference(frame, one_draw, "LAMB"), -EQUAL, EQUAL),
            below("divergence of noise with one draw over ScaLA's", ratio(frame, one_draw, scala, **r), SMALL_SHARE),
        ],
    )


RULES = ((C8, c8), (C17, c17), (C21, c21))
