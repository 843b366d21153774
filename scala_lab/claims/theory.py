"""Claims on convergence: the rate of the outer player, that of the inner one, and what the printed constant leaves out.

Frames of the outer player have one row per setting, T and replica: kappa, epsilon, ascent_steps (0: an inner player
that gives away exactly epsilon), clip (U / L), batch (growing or one), steps (T), replica, value (the squared
gradient of the Moreau envelope at a random iterate), bound (the printed right side), gap (D), gradient_bound (G) and
largest_alpha. Frames of the inner player have one row per random problem: kind (of the constraint set), ratio (S / C),
problem, worst_factor (largest gap_{t+1} / gap_t) and bend (how steep the second half of log gap is, over the first).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.study.statistics import Estimate, mean_interval, paired_columns, slope_interval
from scala_lab.study.verdicts import Claim, ClaimRecord, above, below, record

if TYPE_CHECKING:
    import pandas as pd

SLACK = 0.05
"""How far a fitted exponent may lie from the claimed one: terms of lower order in T bend the line by that much."""

C19 = Claim(
    id="C19",
    source="Theorem of Section 4 and its appendix",
    study="convergence",
    statement="The expected squared gradient of the Moreau envelope falls like eps + kappa_alpha / sqrt(T).",
    paper="at most 4 eps max alpha + 2 kappa_alpha D G / sqrt(T)",
    rule="The exponent of T lies below -1/2 + 0.05; what an inner error eps adds at the largest T lies below "
    "4 eps max alpha; the exponent of kappa_alpha, D and G divided out, lies below 1.",
)

C20 = Claim(
    id="C20",
    source="Lemma on projected gradient ascent, appendix",
    study="convergence",
    statement="The inner maximisation converges linearly: every step shrinks the gap by a factor of at most S/C - 1.",
    paper="C / (2C - S) * log(1/eps) steps for S/C < 2",
    rule="For S/C < 2 no step of any problem shrinks the gap by less than the factor S/C - 1, and the second half of "
    "log gap is more than half as steep as the first, where an error that falls like a power would flatten.",
)

C22 = Claim(
    id="C22",
    source="ours, on the theorem",
    study="convergence",
    statement="The printed constant lacks a factor U/L: where weight norms lie far below U, the bound does not hold.",
    paper="the bound holds for all L <= U",
    rule="At the largest U/L and T the measured value over the printed bound lies above 1.",
)


def c19(frame: pd.DataFrame) -> ClaimRecord:
    """The theorem's three dependences."""
    proper = frame[(frame["batch"] == "growing") & (frame["ascent_steps"] == 0)]
    proper = proper[proper["clip"] == proper["clip"].min()]
    exact = proper[proper["epsilon"] == 0]
    longest = proper["steps"].max()
    return record(
        C19,
        [
            below("exponent of T", _exponent(exact, "steps", "value", ["kappa", "replica"]), -0.5 + SLACK),
            below("what eps adds, over 4 eps max alpha", _added_by_error(proper[proper["steps"] == longest]), 1.0),
            below(
                "exponent of kappa_alpha",
                _exponent(
                    exact[exact["steps"] == longest].assign(
                        share=lambda rows: rows["value"] / rows["gap"] / rows["gradient_bound"]
                    ),
                    "kappa",
                    "share",
                    ["replica"],
                ),
                1.0,
            ),
        ],
    )


def c20(frame: pd.DataFrame) -> ClaimRecord:
    """The lemma, on each kind of constraint set."""
    parts = []
    for kind, rows in frame[frame["ratio"] < 2].groupby("kind", sort=False):
        worst = float((rows["worst_factor"] / (rows["ratio"] - 1)).max())
        parts += [
            below(f"{kind}: largest factor of a step over S/C - 1", Estimate(worst, worst, worst, len(rows)), 1.0),
            above(f"{kind}: steepness of log gap, second half over first", mean_interval(rows["bend"]), 0.5),
        ]
    return record(C20, parts)


def c22(frame: pd.DataFrame) -> ClaimRecord:
    """The bound where U lies far above the weights' norms."""
    widest = frame[(frame["clip"] == frame["clip"].max()) & (frame["batch"] == "growing")]
    if not frame.empty and frame["clip"].max() == frame["clip"].min():
        return record(C22, ())
    last = widest[widest["steps"] == widest["steps"].max()]
    estimate = mean_interval(last["value"] / last["bound"])
    name = f"measured over printed bound at U/L = {frame['clip'].max():g}" if len(last) else "measured over bound"
    return record(C22, [above(name, estimate, 1.0)])


def _exponent(frame: pd.DataFrame, across: str, up: str, by: list[str]) -> Estimate:
    """Mean over repetitions of the slope of log up over log across."""
    slopes = [
        slope_interval(np.log(rows[across].to_numpy(float)), np.log(rows[up].to_numpy(float))).value
        for _, rows in frame.groupby(by)
    ]
    return mean_interval(slopes)


def _added_by_error(frame: pd.DataFrame) -> Estimate:
    """(value at eps - value at 0) / (4 eps max alpha), the same replica on both sides, over all eps > 0."""
    rows = frame[["kappa", "replica", "epsilon", "value"]]
    shares: list[float] = []
    for epsilon in sorted(set(frame["epsilon"]) - {0.0}):
        pairs = paired_columns(rows, "value", "epsilon", epsilon, 0.0)
        printed = 4 * epsilon * float(frame["largest_alpha"].iloc[0])
        shares += ((pairs["left"] - pairs["right"]) / printed).tolist()
    return mean_interval(shares)


RULES = ((C19, c19), (C20, c20), (C22, c22))
