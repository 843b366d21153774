"""Claims of the paper, and the rules by which measurements decide them: no verdict is typed in.

A rule, such as `c10` in studies/large_batch_methods.py, gets a frame of runs and returns `record(claim, parts, gates)`.
A part is an estimate that one kind of statement is tested on:

- `effect`: there is a difference, or a factor, of the paper's sign;
- `equivalent`, `no_worse`: two methods are equal, or one is not worse, up to a margin;
- `within`, `at_most`: a cost or an exponent lies in a range, a value below a bound.

Outcomes of a claim:

- supported: every part is;
- reversed: some part is significantly the opposite of what is claimed;
- no effect of the claimed size: some effect is significantly smaller than half of the paper's;
- undecided: the runs allow several of these. The record says what could have been found and what n it takes;
- not testable here: a gate fails (see scala_lab/study/gates.py), or nothing was measured.

An interval at level 1 - 2a decides its part with one-sided tests at level a. Requiring every part needs no correction
(an intersection-union test: whichever part is false is supported with probability at most a). One part of several is
enough to contradict a claim, so these tests are corrected by Holm's procedure. A wrong verdict thus has a probability
of about 2a, 4% where results are looked at once; benchmarks/verdict_rates.py measures it claim by claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from scala_lab.study.gates import Gate
from scala_lab.study.statistics import FACTOR, MAX_N, Estimate, unit_text

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["supported", "no effect of the claimed size", "reversed", "undecided", "not testable here"]

NO_EFFECT: Verdict = "no effect of the claimed size"
NOT_TESTABLE: Verdict = "not testable here"

EQUAL = 0.4
"""Points of accuracy within which two methods count as equal: half of the 0.8 that the paper claims for its method."""

SAME_RATIO = 1.25  # factor within which two costs, or two divergences, count as the same

SLACK = 1.25
"""Factor by which a measured cost may lie outside of the paper's range: other machines weigh passes differently."""

SINGLE_LOOK = 0.96  # level of the intervals that decide a claim, where results are looked at once
LOOKS: Mapping[int, float] = {4: 0.995, 6: 0.99, 8: 0.96}
"""Levels of the intervals where results are looked at after 4, 6 and 8 seeds, and open arms get more seeds.

An effect of 0 is found at any of the three looks in 4.8% of studies; with 0.95 at the last it would be 5.7%.
"""


def level_for(seeds: int) -> float:
    """Return the level of the latest look that a number of seeds has reached; before the first look, the first's.

    Example:
        >>> [level_for(seeds) for seeds in (3, 4, 7, 12)]
        [0.995, 0.995, 0.99, 0.96]
    """
    return LOOKS[max((look for look in LOOKS if look <= seeds), default=min(LOOKS))]


@dataclass
class Claim:
    """What the paper says."""

    id: str  # C1, C2, ...
    source: str = ""  # figure, table or section of the paper; the study that lists the claim fills in its own
    study: str = ""  # the study whose runs decide it, filled in likewise
    statement: str = ""  # in our words
    paper: str = ""  # the paper's figures
    rule: str = ""  # how the verdict is reached, in words


@dataclass(frozen=True)
class Part:
    """One statement of a claim with the estimate that it is tested on."""

    statement: str
    estimate: Estimate
    low: float  # the claimed range; an effect's ends at 0, or at 1 for a factor
    high: float
    kind: Literal["effect", "range"] = "range"
    paper: float | None = None  # the paper's value
    smallest: float | None = None  # the smallest effect of interest, with its sign
    margin: float | None = None  # within which things count as equal
    contextual: bool = False  # shown, but without a say in the claim's verdict
    gated: bool = True  # whether the claim's gates apply; not to times and counts of passes
    fixed: bool = False  # whether the range stays when margins are scaled

    @property
    def alpha(self) -> float:
        """Level of the one-sided tests that the interval stands for."""
        return (1 - self.estimate.level) / 2

    @property
    def p_supported(self) -> float:
        """p-value of the test that the value lies in the claimed range (two one-sided tests for one with two ends)."""
        strict = self.kind == "effect"
        return max(self.estimate.p_above(self.low, strict=strict), self.estimate.p_below(self.high, strict=strict))

    @property
    def p_reversed(self) -> float:
        """p-value of the test that it lies outside of it, on one side."""
        return min(self.estimate.p_below(self.low), self.estimate.p_above(self.high))

    @property
    def p_no_effect(self) -> float:
        """p-value of the test that the effect is smaller than the smallest of interest; 1 for other kinds."""
        if self.smallest is None:
            return 1.0
        rises = self.high == math.inf
        return self.estimate.p_below(self.smallest) if rises else self.estimate.p_above(self.smallest)

    @property
    def verdict(self) -> Verdict:
        """The verdict on this part alone, by its own interval."""
        if not math.isfinite(self.estimate.value):
            return NOT_TESTABLE
        if self.p_reversed <= self.alpha:
            return "reversed"
        if self.p_no_effect <= self.alpha:
            return NO_EFFECT
        return "supported" if self.p_supported <= self.alpha else "undecided"

    @property
    def interval(self) -> list[float] | None:
        """The ends of the estimate's interval, where it has one."""
        return [self.estimate.low, self.estimate.high] if self.estimate.decided else None

    @property
    def paper_inside(self) -> bool | None:
        """Whether the interval contains the paper's value; None without an interval or a value."""
        if self.paper is None or not self.estimate.decided:
            return None
        return self.estimate.low <= self.paper <= self.estimate.high

    @property
    def null(self) -> float:
        """The value of no effect."""
        return 1.0 if self.estimate.unit == FACTOR else 0.0

    @property
    def n_needed(self) -> int | None:
        """The n that would decide this part in four of five studies, at the present standard deviations.

        An effect must be told from 0 if it is the smallest of interest; a value in a range must be told from the
        range's nearer end, at 0 where the paper's value is unknown. Both of two one-sided tests must succeed at once,
        so each needs a power of 90%.
        """
        position, ends = self.estimate.position, (self.low, self.high)
        if self.smallest is not None:
            return self.estimate.n_needed(self.smallest)
        expected = self.paper if self.paper is not None else self.null if self.margin is not None else math.nan
        if not self.low < expected < self.high:
            expected = self.estimate.value
        if not math.isfinite(expected):
            return None
        distances = [abs(position(expected) - position(end)) for end in ends]
        both = all(math.isfinite(distance) for distance in distances)
        return self.estimate.n_needed(self.estimate.natural(min(distances)), power=0.9 if both else 0.8)

    def scaled(self, scale: float) -> Part:
        """Return the part with its margin, smallest effect and range so many times as wide.

        They are measured from no effect; the range of a cost or an exponent from its middle, or from the paper's value
        where one end is open.
        """
        if self.fixed:
            return self
        position, natural = self.estimate.position, self.estimate.natural
        centre, middle = position(self.null), (position(self.low) + position(self.high)) / 2
        if self.kind == "range" and self.margin is None:
            centre = middle if math.isfinite(middle) else centre if self.paper is None else position(self.paper)

        def moved(value: float) -> float:
            return natural(centre + scale * (position(value) - centre))

        smallest, margin = (None if value is None else moved(value) for value in (self.smallest, self.margin))
        return replace(self, low=moved(self.low), high=moved(self.high), smallest=smallest, margin=margin)

    def to_dict(self, verdict: Verdict) -> dict[str, Any]:
        """Return the part as an entry of claims.json, with the verdict that it has under the claim's gates."""
        estimate, needed = self.estimate, self.n_needed
        return {
            "statement": self.statement,
            "kind": self.kind,
            "value": _finite(estimate.value),
            "interval": self.interval and [_finite(end) for end in self.interval],
            "level": estimate.level,
            "claimed": [_finite(self.low), _finite(self.high)],
            "paper": _finite(self.paper),
            "paper_inside": self.paper_inside,
            "smallest": _finite(self.smallest),
            "margin": _finite(self.margin),
            "n": estimate.n,
            "counts": estimate.counts,
            "sd": _finite(estimate.sd),
            "rows": estimate.rows,
            "unit": estimate.unit,
            "detectable": _finite(estimate.detectable()),
            "n_needed": f"more than {MAX_N:,}" if needed is not None and needed > MAX_N else needed,
            "contextual": self.contextual,
            "note": estimate.note or None,
            "verdict": verdict,
        }


def effect(
    statement: str, estimate: Estimate, paper: float | None, smallest: float | None = None, *, contextual: bool = False
) -> Part:
    """State that a difference, or a factor, has the sign of the paper's.

    The smallest effect of interest is half of the paper's, on the log scale for a factor. It must be given, with its
    sign, where the paper has no number. Supported if the interval excludes 0 on the claimed side and does not lie
    wholly below the smallest effect; no effect of the claimed size if it does; reversed if it lies on the other side
    of 0.

    Raises:
        ValueError: The claimed sign is unknown.
    """
    natural = estimate.natural
    null = natural(0.0)
    if smallest is None:
        smallest = natural(estimate.position(paper) / 2) if paper is not None else null
    if smallest == null or not math.isfinite(smallest) or (estimate.unit == FACTOR and smallest <= 0):
        raise ValueError(f"{statement}: an effect needs the paper's value, or the smallest effect with its sign")
    low, high = (null, math.inf) if smallest > null else (natural(-math.inf), null)
    return Part(statement, estimate, low, high, "effect", paper, smallest, contextual=contextual)


def equivalent(statement: str, estimate: Estimate, margin: float, **role: Any) -> Part:
    """State that two things are equal: within the margin on either side of 0, or within a factor of it.

    Supported if the whole interval is (two one-sided tests), reversed if none of it is.
    """
    low = estimate.natural(-estimate.position(margin))
    return Part(statement, estimate, low, margin, margin=margin, **role)


def no_worse(statement: str, estimate: Estimate, margin: float, **role: Any) -> Part:
    """State that a difference, where more is better, is not below -margin, or a factor not below 1 / margin."""
    return replace(equivalent(statement, estimate, margin, **role), high=math.inf)


def within(statement: str, estimate: Estimate, low: float, high: float, **role: Any) -> Part:
    """State that a value lies in a range, an end of which may be infinite."""
    return Part(statement, estimate, low, high, **role)


def at_most(statement: str, estimate: Estimate, bound: float, **role: Any) -> Part:
    """State that a value does not exceed a bound: supported if the whole interval is below, reversed if above."""
    return Part(statement, estimate, estimate.natural(-math.inf), bound, **role)


def holm(ratios: Sequence[float]) -> list[bool]:
    """Return which tests Holm's procedure rejects, from each one's p-value over its level.

    The smallest ratio is compared with 1 / m, the next with 1 / (m - 1), and so on, until one is larger. The chance
    that any true hypothesis is rejected is at most the level.

    Example:
        >>> holm([0.3, 0.6, 0.7])
        [True, False, False]
        >>> holm([0.4, 0.6, 0.5])
        [False, False, False]
    """
    rejected = [False] * len(ratios)
    for left, index in zip(range(len(ratios), 0, -1), sorted(range(len(ratios)), key=ratios.__getitem__), strict=True):
        if ratios[index] * left > 1:
            break
        rejected[index] = True
    return rejected


@dataclass(frozen=True)
class ClaimRecord:
    """A claim with what was measured."""

    claim: Claim
    parts: tuple[Part, ...]
    gates: tuple[Gate, ...] = ()
    sensitivity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def deciding(self) -> list[Part]:
        """The parts that have a say."""
        return [part for part in self.parts if not part.contextual]

    @property
    def failed(self) -> list[Gate]:
        """The gates that fail."""
        return [gate for gate in self.gates if not gate.passed]

    def at(self, level: float) -> ClaimRecord:
        """Return the record with all intervals at a level."""
        return replace(self, parts=tuple(replace(part, estimate=part.estimate.at(level)) for part in self.parts))

    def contradicting(self, verdict: Verdict) -> list[Part]:
        """Return the deciding parts that are reversed, or show no effect, after Holm's correction."""
        by_sign = verdict == "reversed"
        parts = [part for part in self.deciding if by_sign or part.smallest is not None]
        stands = holm([(part.p_reversed if by_sign else part.p_no_effect) / part.alpha for part in parts])
        return [part for part, rejected in zip(parts, stands, strict=True) if rejected]

    @property
    def verdict(self) -> Verdict:
        """The claim's verdict, as the module's description has it."""
        deciding = self.deciding
        if self.failed or not deciding or any(part.verdict == NOT_TESTABLE for part in deciding):
            return NOT_TESTABLE
        if all(part.verdict == "supported" for part in deciding):
            return "supported"
        if self.contradicting("reversed"):
            return "reversed"
        return NO_EFFECT if self.contradicting(NO_EFFECT) else "undecided"

    def verdict_of(self, part: Part) -> Verdict:
        """Return a part's own verdict, which the claim's gates can forbid."""
        return NOT_TESTABLE if self.failed and part.gated else part.verdict

    @property
    def why(self) -> str:
        """Why the verdict is what it is, in plain words."""
        verdict, deciding = self.verdict, self.deciding
        if self.failed:
            reasons = "; ".join(f"{gate.name} ({gate.detail})" for gate in self.failed)
            remedies = "; ".join(dict.fromkeys(gate.remedy for gate in self.failed if gate.remedy))
            return f"Failed: {reasons}. It would take {remedies}."
        if verdict == NOT_TESTABLE:
            lost = "; ".join(part.statement for part in deciding if part.verdict == NOT_TESTABLE)
            return f"Not measured: {lost}." if lost else "Nothing was measured."
        if verdict == "supported":
            reasons = "; ".join(_reason(part, "supported") for part in deciding)
        elif verdict == "undecided":
            reasons = "; ".join(_open(part) for part in deciding if part.verdict != "supported")
        else:
            reasons = "; ".join(_reason(part, verdict) for part in self.contradicting(verdict))
        notes = "; ".join(dict.fromkeys(part.estimate.note for part in deciding if part.estimate.note))
        return f"{reasons}.{f' Note: {notes}.' if notes else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of claims.json; its interval is that of the first part with the claim's verdict."""
        verdict, claim = self.verdict, asdict(self.claim)
        shown = [part for part in self.deciding if part.verdict == verdict] or self.deciding
        rule, interval = claim.pop("rule"), next((part.interval for part in shown if part.interval), None)
        return {
            **claim,
            "measured": "; ".join(f"{part.statement}: {part.estimate}" for part in self.parts) or None,
            "interval": interval and [_finite(end) for end in interval],
            "rule": rule,
            "verdict": verdict,
            "why": self.why,
            "gates": [gate.to_dict() for gate in self.gates],
            "parts": [part.to_dict(self.verdict_of(part)) for part in self.parts],
            "sensitivity": dict(self.sensitivity) or None,
        }


def record(claim: Claim, parts: Sequence[Part], gates: Sequence[Gate] = ()) -> ClaimRecord:
    """Return the claim with its parts and gates."""
    return ClaimRecord(claim, tuple(parts), tuple(gates))


Rule = Callable[["pd.DataFrame"], ClaimRecord]  # judges a claim by a frame of runs


def judge(rule: Rule, frame: pd.DataFrame, level: float = SINGLE_LOOK) -> ClaimRecord:
    """Return the rule's record with intervals at a level, and with its sensitivity.

    That has the verdicts without each seed, without each task, and with margins halved and doubled: `same` of `of` such
    verdicts equal the verdict of the whole frame.
    """
    found = rule(frame).at(level)
    others: dict[str, dict[str, Verdict]] = {}
    for name, column in (("without_seed", "seed"), ("without_task", "task")):
        values = sorted(frame[column].dropna().unique().tolist(), key=str) if column in frame.columns else []
        left_out = values if len(values) > 1 else []
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in left_out]
        found_without = [rule(frame[frame[column] != value]).at(level).verdict for value in left_out]
        others[name] = dict(zip(texts, found_without, strict=True))
    scaled = {scale: tuple(part.scaled(scale) for part in found.parts) for scale in (0.5, 2.0)}
    others["margins"] = {f"{scale:g}": replace(found, parts=parts).verdict for scale, parts in scaled.items()}
    verdicts = [verdict for group in others.values() for verdict in group.values()]
    same = sum(verdict == found.verdict for verdict in verdicts)
    return replace(found, sensitivity={**others, "same": same, "of": len(verdicts)})


def number_text(part: Part, value: float) -> str:
    """Write a value in the unit of a part's estimate."""
    if value == 0:
        return "0"
    sign = "+" if part.estimate.unit == "points" else ""
    return f"{value:{sign}.3g}{unit_text(part.estimate.unit)}"


def range_text(part: Part) -> str:
    """Write the claimed range of a part."""
    if not math.isfinite(part.low) or (part.estimate.unit == FACTOR and part.low == 0):
        return f"at most {number_text(part, part.high)}"
    if not math.isfinite(part.high):
        return f"at least {number_text(part, part.low)}"
    return f"{number_text(part, part.low)} to {number_text(part, part.high)}"


def _reason(part: Part, verdict: Verdict) -> str:
    """Say why a part has a verdict."""
    found = f"{part.statement} is {part.estimate}: its {100 * part.estimate.level:g}% interval"
    if part.smallest is None:
        where = "inside" if verdict == "supported" else "outside"
        return f"{found} lies {where} of the claimed range, {range_text(part)}"
    claimed, other = ("above", "below") if part.high == math.inf else ("below", "above")
    if verdict == NO_EFFECT:
        position, paper = part.estimate.position, part.paper
        half = paper is not None and math.isclose(2 * position(part.smallest), position(paper))
        return f"{found} lies {other} {number_text(part, part.smallest)}" + " (half of the paper's)" * half
    if verdict == "reversed":
        return f"{found} lies {other} {number_text(part, part.null)}"
    found += f" lies {claimed} {number_text(part, part.null)}"
    if part.paper is None:
        return found
    return f"{found}, and {'contains' if part.paper_inside else 'excludes'} the paper's {number_text(part, part.paper)}"


def _open(part: Part) -> str:
    """Say what an undecided part leaves open, and what would decide it."""
    found, counted = f"{part.statement} is {part.estimate}", part.estimate.counted
    if not part.estimate.decided:
        return f"{found}: {counted(1)} gives no interval"
    if part.verdict != "undecided":
        return f"{_reason(part, part.verdict)}, but not after the correction for several parts"
    if part.smallest is not None:
        found += f": neither {number_text(part, part.null)} nor {number_text(part, part.smallest)} is excluded"
    else:
        found += f": partly inside of the claimed range, {range_text(part)}"
    detectable, needed = part.estimate.detectable(), part.n_needed
    if detectable is not None:
        effect_size = number_text(part, detectable).lstrip("+")
        found += f"; with {counted(part.estimate.n)}, four of five studies would find an effect of {effect_size}"
    if needed is not None:
        enough = needed <= MAX_N
        found += f"; about {counted(needed)} would decide it" if enough else f"; {counted(MAX_N)} would not decide it"
    return found


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
