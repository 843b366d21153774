"""Claims on time: what a step with noise costs, and how time falls with the number of workers.

Frames of C7 have one row per method, step and phase: method (`plain`, `PGA-1` and others), step, phase (`step` for the
whole) and seconds. Frames of the others have one row per line of the figure, number of workers and step: label,
workers, step, seconds (of an epoch or a run, at that step's pace) and, for C1, without (the same less communication).
The same step holds the same rows under every method and number of workers, so steps are pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.verdicts import Claim, ClaimRecord, Part, above, below, record, within

if TYPE_CHECKING:
    import pandas as pd

PLAIN, NOISE = "plain", "PGA-1"
SMALL, LARGE = "small batch", "large batch"
BASELINE, LAMB, SCALA, NO_DELAY = "baseline", "LAMB", "ScaLA", "ScaLA without delay"
GAIN = 1.2
"""Doubling the workers is said to help when it divides the time by more than this; perfect scaling divides it by 2."""
KNEE, MOST = 4, 32
"""Where the paper's small batch stops scaling, and how far its large batch goes."""

C1 = Claim(
    id="C1",
    source="Figure 1(a), Section 3",
    study="scalability",
    statement="At the small batch size time stops falling at about 4 workers; without communication it goes on.",
    paper="B=32: plateau from 4 of 32 workers on",
    rule="Per doubling of workers: beyond 4 the time falls by a factor below 1.2, up to 4 and without communication "
    "beyond 4 by one above 1.2. Decided only where more than 4 workers were measured.",
)

C2 = Claim(
    id="C2",
    source="Figure 1(a), Section 3",
    study="scalability",
    statement="At the large batch size time keeps falling up to 32 workers.",
    paper="B=1K: falls from 1 to 32 workers",
    rule="Per doubling of workers, over all and over the last, the time falls by a factor above 1.2. Decided only "
    "where 32 workers were measured.",
)

C7 = Claim(
    id="C7",
    source="Figure 3, Section 4",
    study="time_breakdown",
    statement="PGA-1 costs about three forward passes, doubles the backward pass and leaves the optimizer alone; a "
    "step takes at least twice as long.",
    paper="3 forward passes; backward about 2x; optimizer 1x; in all at least 2x",
    rule="Inner forward plus a full backward, in forward passes, within 2.4 to 3.6; backward over plain within 1.6 to "
    "2.4; optimizer over plain within 0.8 to 1.25; step over plain above 2.",
)

C14 = Claim(
    id="C14",
    source="Figure 5, Section 5",
    study="method_scalability",
    statement="All large-batch methods scale to 32 workers, and the delayed start of the noise saves most on 1 to 16.",
    paper="the four large-batch lines fall up to 32 workers, where they meet",
    rule="Per doubling of workers each large-batch line falls by a factor above 1.2; without delay over with delay is "
    "larger on up to 16 workers than on 32. Decided only where 32 workers were measured.",
)


def c1(frame: pd.DataFrame) -> ClaimRecord:
    """The small batch."""
    small = frame[frame["label"] == SMALL]
    counts = _counts(small)
    if not counts:
        return record(C1, ())
    beyond = [count for count in counts if count >= KNEE]
    parts = [
        above("gain per doubling up to 4", _gain(small, "seconds", [count for count in counts if count <= KNEE]), GAIN),
        below("gain per doubling beyond 4", _gain(small, "seconds", beyond), GAIN),
        above("gain per doubling beyond 4 without communication", _gain(small, "without", beyond), GAIN),
    ]
    return record(C1, parts if counts[-1] > KNEE else _undecided(parts))


def c2(frame: pd.DataFrame) -> ClaimRecord:
    """The large batch."""
    large = frame[frame["label"] == LARGE]
    counts = _counts(large)
    if not counts:
        return record(C2, ())
    parts = [
        above(f"gain per doubling from {counts[0]:g} to {counts[-1]:g}", _gain(large, "seconds", counts), GAIN),
        above("gain of the last doubling", _gain(large, "seconds", counts[-2:]), GAIN),
    ]
    return record(C2, parts if counts[-1] >= MOST else _undecided(parts))


def c7(frame: pd.DataFrame) -> ClaimRecord:
    """The four parts of the cost."""
    wide = frame.pivot_table("seconds", ["method", "step"], "phase")
    if not {PLAIN, NOISE} <= set(frame["method"]):
        return record(C7, ())
    plain, noise = wide.loc[PLAIN], wide.loc[NOISE]
    inner = noise["inner forward"] + plain["backward"]
    return record(
        C7,
        [
            within("PGA-1 in forward passes", paired_ratio(inner, plain["clean forward"]), 2.4, 3.6),
            within("backward over plain", paired_ratio(noise["backward"], plain["backward"]), 1.6, 2.4),
            within("optimizer over plain", paired_ratio(noise["optimizer"], plain["optimizer"]), 0.8, 1.25),
            above("step over plain", paired_ratio(noise["step"], plain["step"]), 2.0),
        ],
    )


def c14(frame: pd.DataFrame) -> ClaimRecord:
    """The four large-batch lines, and what the delay saves."""
    parts = []
    for label in (BASELINE, LAMB, SCALA, NO_DELAY):
        line = frame[frame["label"] == label]
        counts = _counts(line)
        if counts:
            parts.append(above(f"{label}: gain per doubling of workers", _gain(line, "seconds", counts), GAIN))
    if not parts:
        return record(C14, ())
    counts = _counts(frame)
    saved = {count: _saved(frame[frame["workers"] == count]) for count in counts}
    few = [saved[count] for count in counts if count < MOST and saved[count].n]
    best = max(few, key=lambda estimate: estimate.value, default=Estimate(math.nan, -math.inf, math.inf, 0))
    if MOST in saved:
        most = saved[MOST]
        ratio = Estimate(best.value / most.value, best.low / most.high, best.high / most.low, best.n, unit="x")
        return record(C14, [*parts, above("what the delay saves on fewer workers, over that on 32", ratio, 1.0)])
    return record(C14, _undecided([*parts, above("without delay over with delay, at best", best, 1.0)]))


def _counts(frame: pd.DataFrame) -> list[float]:
    return sorted(set(frame["workers"]))


def _gain(line: pd.DataFrame, value: str, counts: list[float]) -> Estimate:
    """By what factor a doubling of the workers divides the time, from the fewest to the most of some numbers."""
    if len(counts) < 2:
        return Estimate(math.nan, -math.inf, math.inf, 0, unit="x")
    pairs = paired_columns(line[["workers", "step", value]], value, "workers", counts[0], counts[-1])
    whole = paired_ratio(pairs["left"], pairs["right"])
    power = 1 / math.log2(counts[-1] / counts[0])
    return replace(whole, value=whole.value**power, low=whole.low**power, high=whole.high**power)


def _saved(frame: pd.DataFrame) -> Estimate:
    pairs = paired_columns(frame[["label", "step", "seconds"]], "seconds", "label", NO_DELAY, SCALA)
    return paired_ratio(pairs["left"], pairs["right"])


def _undecided(parts: list[Part]) -> list[Part]:
    """The numbers, without a verdict: too few workers to speak of what the paper claims."""
    return [replace(part, verdict="inconclusive") if part.estimate.n else part for part in parts]


RULES = ((C1, c1), (C2, c2), (C7, c7), (C14, c14))
