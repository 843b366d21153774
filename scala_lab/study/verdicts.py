"""A claim, the evidence for it and the verdict, which is computed and never typed.

Two methods side by side over the same models, tasks and seeds: the numbers most claims on accuracy rest on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scala_lab.study.statistics import Estimate, mean_interval, paired_columns, paired_difference, paired_ratio

if TYPE_CHECKING:
    import pandas as pd


Verdict = Literal["reproduced", "contradicted", "inconclusive", "not run"]


@dataclass(frozen=True)
class Claim:
    """What the paper says.

    Attributes:
        id: C1, C2, ...
        source: Where it stands in the paper.
        study: The study whose runs decide it.
        statement: In our words.
        paper: The paper's figures.
        rule: How the verdict is reached, in words.
    """

    id: str
    source: str
    study: str
    statement: str
    paper: str
    rule: str


@dataclass(frozen=True)
class Part:
    """One measurable part of a claim with its own verdict."""

    statement: str
    estimate: Estimate
    verdict: Verdict


@dataclass(frozen=True)
class ClaimRecord:
    """A claim with what was measured."""

    claim: Claim
    parts: tuple[Part, ...]

    @property
    def verdict(self) -> Verdict:
        """Reproduced if every part is, contradicted if any part is, not run without parts, else inconclusive."""
        found = {part.verdict for part in self.parts}
        if not found or found == {"not run"}:
            return "not run"
        if "contradicted" in found:
            return "contradicted"
        return "reproduced" if found == {"reproduced"} else "inconclusive"

    def to_dict(self) -> dict[str, Any]:
        """For claims.json; the interval is that of the part that decides."""
        deciding = next((part for part in self.parts if part.verdict == self.verdict), None)
        interval = [deciding.estimate.low, deciding.estimate.high] if deciding and deciding.estimate.decided else None
        return {
            "id": self.claim.id,
            "source": self.claim.source,
            "study": self.claim.study,
            "statement": self.claim.statement,
            "paper": self.claim.paper,
            "measured": "; ".join(f"{part.statement}: {part.estimate}" for part in self.parts) or None,
            "interval": interval,
            "rule": self.claim.rule,
            "verdict": self.verdict,
            "parts": [
                {
                    "statement": part.statement,
                    "value": _finite(part.estimate.value),
                    "interval": [part.estimate.low, part.estimate.high] if part.estimate.decided else None,
                    "effect_size": _finite(part.estimate.effect_size),
                    "n": part.estimate.n,
                    "unit": part.estimate.unit,
                    "verdict": part.verdict,
                }
                for part in self.parts
            ],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def above(statement: str, estimate: Estimate, threshold: float = 0.0) -> Part:
    """Claimed to lie above a threshold: reproduced if the whole interval does, contradicted if none of it does."""
    return Part(statement, estimate, _decide(estimate, estimate.low > threshold, estimate.high < threshold))


def below(statement: str, estimate: Estimate, threshold: float = 0.0) -> Part:
    """Claimed to lie below a threshold."""
    return Part(statement, estimate, _decide(estimate, estimate.high < threshold, estimate.low > threshold))


def within(statement: str, estimate: Estimate, low: float, high: float) -> Part:
    """Claimed to lie in a range: reproduced if the interval is inside, contradicted if it is wholly outside."""
    inside = low <= estimate.low and estimate.high <= high
    outside = estimate.high < low or estimate.low > high
    return Part(statement, estimate, _decide(estimate, inside, outside))


def _decide(estimate: Estimate, holds: bool, fails: bool) -> Verdict:
    if estimate.n == 0:
        return "not run"
    if not estimate.decided:
        return "inconclusive"
    return "reproduced" if holds else "contradicted" if fails else "inconclusive"


def record(claim: Claim, parts: Sequence[Part]) -> ClaimRecord:
    """The claim with its parts."""
    return ClaimRecord(claim, tuple(parts))


EQUAL = 0.5
"""Points of accuracy within which two methods count as equal: below the 0.8 that the paper claims for its method."""

PAIRS = ("model", "task", "seed")
"""What two runs of a pair share; columns that a frame lacks are left out."""


def difference(
    frame: pd.DataFrame,
    left: object,
    right: object,
    *,
    column: str = "method",
    value: str = "score",
    pairs: Sequence[str] = PAIRS,
) -> Estimate:
    """Mean of left - right over pairs, in points."""
    sides = _sides(frame, left, right, column, value, pairs)
    return paired_difference(sides["left"], sides["right"])


def ratio(
    frame: pd.DataFrame,
    left: object,
    right: object,
    *,
    column: str = "method",
    value: str = "train_seconds",
    pairs: Sequence[str] = PAIRS,
) -> Estimate:
    """Geometric mean of left / right over pairs."""
    sides = _sides(frame, left, right, column, value, pairs)
    return paired_ratio(sides["left"], sides["right"])


def mean_slope(frame: pd.DataFrame, across: str, value: str = "score", pairs: Sequence[str] = PAIRS) -> Estimate:
    """Mean over pairs of the slope of a least-squares line: levels that differ between tasks do not enter."""
    keys = [name for name in pairs if name in frame.columns]
    slopes = [
        float(np.polyfit(rows[across], rows[value], 1)[0])
        for _, rows in frame.dropna(subset=[across, value]).groupby(keys)
        if rows[across].nunique() > 1
    ]
    return mean_interval(slopes, "points")


def _sides(
    frame: pd.DataFrame, left: object, right: object, column: str, value: str, pairs: Sequence[str]
) -> pd.DataFrame:
    keys = [name for name in pairs if name in frame.columns]
    return paired_columns(frame[[*keys, column, value]], value, column, left, right)
