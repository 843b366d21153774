"""Claims of the paper, and the rules by which paired measurements decide them: no verdict is typed in.

A rule, such as `c10` in studies/large_batch_methods.py, gets one row per run at its method's best rate with columns
of `frame_of`: model, task, seed, method, score (percent) and, where cost is judged, forward_passes and train_seconds.
It returns `record(claim, parts)`. A part is an estimate whose interval is compared with a threshold by `above`, `below`
or `within`. `difference`, `ratio` and `mean_slope` compare runs that share model, task and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scala_lab.study.statistics import Estimate, mean_interval, paired_columns, paired_difference, paired_ratio

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["reproduced", "contradicted", "inconclusive", "not run"]


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is judged."""

    id: str  # C1, C2, ...
    source: str  # figure, table or section of the paper
    study: str  # the study whose runs decide it
    statement: str  # in our words
    paper: str  # the paper's figures
    rule: str  # how the verdict is reached, in words


@dataclass(frozen=True)
class Part:
    """One measurable part of a claim with its own verdict."""

    statement: str
    estimate: Estimate
    verdict: Verdict

    @property
    def interval(self) -> list[float] | None:
        """The ends of the estimate's interval, where it has one."""
        return [self.estimate.low, self.estimate.high] if self.estimate.decided else None


@dataclass(frozen=True)
class ClaimRecord:
    """A claim with what was measured."""

    claim: Claim
    parts: tuple[Part, ...]

    @property
    def verdict(self) -> Verdict:
        """Reproduced if every part is, contradicted if any part is, not run without parts, else inconclusive."""
        verdicts = {part.verdict for part in self.parts}
        if not verdicts or verdicts == {"not run"}:
            return "not run"
        if "contradicted" in verdicts:
            return "contradicted"
        return "reproduced" if verdicts == {"reproduced"} else "inconclusive"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of claims.json; its interval is that of the first part with the claim's verdict."""
        claim = asdict(self.claim)
        rule = claim.pop("rule")
        return {
            **claim,
            "measured": "; ".join(f"{part.statement}: {part.estimate}" for part in self.parts) or None,
            "interval": next((part.interval for part in self.parts if part.verdict == self.verdict), None),
            "rule": rule,
            "verdict": self.verdict,
            "parts": [
                {
                    "statement": part.statement,
                    "value": part.estimate.value,
                    "interval": part.interval,
                    "effect_size": part.estimate.effect_size,
                    "n": part.estimate.n,
                    "unit": part.estimate.unit,
                    "verdict": part.verdict,
                }
                for part in self.parts
            ],
        }


def record(claim: Claim, parts: Sequence[Part]) -> ClaimRecord:
    """Return the claim with its judged parts."""
    return ClaimRecord(claim, tuple(parts))


def above(statement: str, estimate: Estimate, threshold: float = 0.0) -> Part:
    """Judge that a value lies above a threshold: reproduced if its whole interval does, contradicted if none does."""
    return Part(statement, estimate, _decide(estimate, estimate.low > threshold, estimate.high < threshold))


def below(statement: str, estimate: Estimate, threshold: float = 0.0) -> Part:
    """Judge that a value lies below a threshold."""
    return Part(statement, estimate, _decide(estimate, estimate.high < threshold, estimate.low > threshold))


def within(statement: str, estimate: Estimate, low: float, high: float) -> Part:
    """Judge that a value lies in a range: reproduced if the interval is inside, contradicted if wholly outside."""
    inside = low <= estimate.low and estimate.high <= high
    outside = estimate.high < low or estimate.low > high
    return Part(statement, estimate, _decide(estimate, inside, outside))


def _decide(estimate: Estimate, holds: bool, fails: bool) -> Verdict:
    if estimate.n == 0:
        return "not run"
    if not estimate.decided:
        return "inconclusive"
    return "reproduced" if holds else "contradicted" if fails else "inconclusive"


EQUAL = 0.5
"""Points of accuracy within which two methods count as equal: below the 0.8 that the paper claims for its method."""

SAME_RATIO = (0.8, 1.25)
"""Range of the ratio of two costs, or of two divergences, that count as the same."""

SLACK = 1.25
"""Factor by which a measured cost may lie outside of the paper's range: other machines weigh passes differently."""

PAIRED_BY = ("model", "task", "seed")
"""What the two runs of a pair share; columns that a frame lacks are left out."""


def pair_keys(frame: pd.DataFrame, paired_by: Sequence[str] = PAIRED_BY) -> list[str]:
    """Return the columns that identify a pair, as far as the frame has them."""
    return [name for name in paired_by if name in frame.columns]


def difference(
    frame: pd.DataFrame, left: object, right: object, *, column: str = "method", paired_by: Sequence[str] = PAIRED_BY
) -> Estimate:
    """Return the mean of left's score - right's over pairs, in points; `column` tells the two sides apart."""
    keys = pair_keys(frame, paired_by)
    sides = paired_columns(frame[[*keys, column, "score"]], "score", column, left, right)
    return paired_difference(sides["left"], sides["right"])


def ratio(frame: pd.DataFrame, left: str, right: str, *, value: str) -> Estimate:
    """Return the geometric mean over pairs of one method's value over another's."""
    sides = paired_columns(frame[[*pair_keys(frame), "method", value]], value, "method", left, right)
    return paired_ratio(sides["left"], sides["right"])


def mean_slope(frame: pd.DataFrame, x: str, y: str = "score", unit: str = "points") -> Estimate:
    """Return the mean over pairs of the slope of a least-squares line, unaffected by levels that differ by task."""
    pairs = [rows for _, rows in frame.dropna(subset=[x, y]).groupby(pair_keys(frame)) if rows[x].nunique() > 1]
    return mean_interval([float(np.polyfit(rows[x], rows[y], 1)[0]) for rows in pairs], unit)


def cost_parts(frame: pd.DataFrame, method: str, limits: tuple[float, float]) -> list[Part]:
    """Judge that a method's cost over ScaLA's lies within limits, in forward passes and in seconds."""
    return [
        within(f"{unit} of {method} over ScaLA", ratio(frame, method, "ScaLA", value=value), *limits)
        for unit, value in (("forward passes", "forward_passes"), ("seconds", "train_seconds"))
    ]
