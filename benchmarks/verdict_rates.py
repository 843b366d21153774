"""How often the rules of scala_lab/study/verdicts.py are right: rates of each verdict over made-up studies.

    python benchmarks/verdict_rates.py [--studies 1000] [--seeds 2 4 8]

Each made-up study has runs of known truth with the noise of real ones: paired differences vary between seeds by 0.3
points where arms share a trunk and by 0.75 against AdamW; 20,000 evaluation rows, on which 4% of answers differ between
two arms, are drawn anew for each study, so that the truth is about all rows there could be. The rules are those of the
claims that they are named after, cut to their kinds of parts. `wrong` adds up the verdicts that the truth forbids; what
else is not the truth's own verdict is a lack of power.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pandas as pd
import tyro

from scala_lab.study.statistics import LEVEL, paired_difference, paired_ratio, slope_per_doubling
from scala_lab.study.verdicts import (
    EQUAL,
    LOOKS,
    NO_EFFECT,
    Claim,
    ClaimRecord,
    Verdict,
    effect,
    equivalent,
    level_for,
    no_worse,
    record,
)

ROWS = 20_000
STEADY, VARYING = 0.01, 0.03  # shares of answers that differ between two arms: with every seed alike, or by chance
ACTIVE = 0.2  # share of rows whose answers can vary
BRANCH, OTHER, LOG_RATIO = 0.3, 0.75, 0.3  # standard deviations between seeds: points, points, logarithms
SIZES = (32, 512, 2048)
CLAIM = Claim("made up", "", "", "", "", "")

Frame = pd.DataFrame
Truth = Mapping[str, float]
"""The true difference of each arm from the reference, in points, or the true factor of each measure."""


@dataclass(frozen=True)
class Rule:
    """A kind of rule, how its runs are made up, and what the verdict must not be under each truth."""

    name: str
    judge: Callable[[Frame, float], ClaimRecord]  # from the frame and the level of its intervals
    make: Callable[[np.random.Generator, Truth, int], Frame]  # from the truth and the number of seeds
    truths: Mapping[str, tuple[Truth, tuple[Verdict, ...]]]  # by name: the truth and the verdicts that are wrong


def answers(rng: np.random.Generator, arms: Mapping[str, tuple[float, float]], seeds: int, rows: int = ROWS) -> Frame:
    """Make up runs of a reference and of arms that differ from it, given each arm's difference and its SD over seeds.

    On some rows an arm differs from the reference with every seed, up or down; on others by chance, where a seed leans
    to one side. The deviation between seeds includes that chance.
    """
    right = np.repeat((rng.random((1, rows), dtype=np.float32) < 0.9).astype(np.uint8), seeds, axis=0)
    active, own = round(ACTIVE * rows), {}
    for place, (arm, (difference, deviation)) in enumerate(arms.items()):
        block = slice(place * active, (place + 1) * active)
        between = np.sqrt(max(0.0, deviation**2 - 100**2 * VARYING / rows))
        up = 0.5 + (difference + between * rng.normal(size=(seeds, 1))) / (200 * VARYING)
        draw = rng.random((seeds, active), dtype=np.float32) / np.float32(VARYING / (ACTIVE - STEADY))
        changed, raised = draw < 1, draw < up
        steady = rng.random(active, dtype=np.float32) / np.float32(STEADY / ACTIVE)
        changed[:, steady < 1], raised[:, steady < 1], raised[:, steady < 0.5] = True, False, True
        right[:, block] = ~raised
        own[arm] = (block, ~changed | raised)
    by_arm = {"reference": right}
    for arm, (block, correct) in own.items():
        by_arm[arm] = right.copy()
        by_arm[arm][:, block] = correct
    runs = [(arm, seed, table[seed]) for arm, table in by_arm.items() for seed in range(seeds)]
    columns = {
        "method": [arm for arm, _, _ in runs],
        "seed": [seed for _, seed, _ in runs],
        "score": [100 * float(correct.mean()) for _, _, correct in runs],
        "correct": [correct for _, _, correct in runs],
    }
    return Frame(columns).astype({"method": object}).assign(rows=rows)


def one_effect(frame: Frame, level: float) -> ClaimRecord:
    """ScaLA is more accurate than LAMB, by 0.8 points."""
    return record(CLAIM, [effect("ScaLA minus LAMB", paired_difference(frame, "ScaLA", "reference").at(level), 0.8)])


def several_parts(frame: Frame, level: float) -> ClaimRecord:
    """ScaLA is more accurate than LAMB, the baseline and one draw; LAMB is no worse than the baseline (as C10)."""

    def minus(left: str, right: str) -> tuple[str, object]:
        return f"{left} minus {right}", paired_difference(frame, left, right).at(level)

    return record(
        CLAIM,
        [
            effect(*minus("ScaLA", "reference"), 0.8),
            effect(*minus("ScaLA", "baseline"), 1.0),
            effect(*minus("ScaLA", "one draw"), 0.8),
            no_worse(*minus("reference", "baseline"), EQUAL),
        ],
    )


def equivalence(frame: Frame, level: float) -> ClaimRecord:
    """FreeLB is as accurate as ScaLA (as C12)."""
    difference = paired_difference(frame, "FreeLB", "reference").at(level)
    return record(CLAIM, [equivalent("FreeLB minus ScaLA", difference, EQUAL)])


def ratios(frame: Frame, level: float) -> ClaimRecord:
    """A large batch is sharper than a small one, and varies more between samples (as C5)."""
    parts = [
        effect(value, paired_ratio(frame, "large", "small", value=value).at(level), paper)
        for value, paper in (("eigenvalue", 2.6), ("deviation", 3.9))
    ]
    return record(CLAIM, parts)


def slope(frame: Frame, level: float) -> ClaimRecord:
    """Accuracy falls by 0.2 points per doubling of the batch (as C4)."""
    return record(CLAIM, [effect("slope per doubling", slope_per_doubling(frame).at(level), -0.2)])


def make_effect(rng: np.random.Generator, truth: Truth, seeds: int) -> Frame:
    """Make up runs of LAMB and of ScaLA, which branches from it."""
    return answers(rng, {"ScaLA": (truth["ScaLA"], BRANCH)}, seeds)


def make_several(rng: np.random.Generator, truth: Truth, seeds: int) -> Frame:
    """Make up runs of LAMB, two branches of it, and the baseline."""
    deviations = {"ScaLA": BRANCH, "one draw": BRANCH, "baseline": OTHER}
    return answers(rng, {arm: (truth[arm], deviation) for arm, deviation in deviations.items()}, seeds)


def make_equivalence(rng: np.random.Generator, truth: Truth, seeds: int) -> Frame:
    """Make up runs of ScaLA and FreeLB, which share no trunk."""
    return answers(rng, {"FreeLB": (truth["FreeLB"], OTHER)}, seeds)


def make_equal_branches(rng: np.random.Generator, truth: Truth, seeds: int) -> Frame:
    """Make up the same with a trunk that both share."""
    return answers(rng, {"FreeLB": (truth["FreeLB"], BRANCH)}, seeds)


def make_ratios(rng: np.random.Generator, truth: Truth, seeds: int) -> Frame:
    """Make up top eigenvalues and deviations of a small and a large batch."""
    frame = Frame({"task": "made up", "method": ["small", "large"] * seeds, "seed": np.repeat(range(seeds), 2)})
    for value, factor in truth.items():
        logs = rng.normal(scale=LOG_RATIO / np.sqrt(2), size=2 * seeds) + np.tile([0, np.log(factor)], seeds)
        frame[value] = np.exp(logs)
    return frame


def make_slope(rng: np.random.Generator, truth: Truth, seeds: int) -> Frame:
    """Make up runs of the baseline at three batch sizes."""
    falls = {str(size): (truth["slope"] * np.log2(size / SIZES[0]), OTHER) for size in SIZES[1:]}
    frame = answers(rng, falls, seeds)
    return frame.assign(batch_size=[SIZES[0] if size == "reference" else int(size) for size in frame["method"]])


SIGN: tuple[Verdict, ...] = ("supported", "reversed")
SIZE: tuple[Verdict, ...] = ("reversed", NO_EFFECT)
SUPPORTED: tuple[Verdict, ...] = ("supported",)

RULES = (
    Rule(
        "effect",
        one_effect,
        make_effect,
        {
            "paper's, +0.8": ({"ScaLA": 0.8}, SIZE),
            "half of it": ({"ScaLA": 0.4}, SIZE),
            "none": ({"ScaLA": 0.0}, SIGN),
            "reversed": ({"ScaLA": -0.8}, SUPPORTED),
        },
    ),
    Rule(
        "four parts",
        several_parts,
        make_several,
        {
            "paper's": ({"ScaLA": 0.8, "one draw": 0.0, "baseline": -0.2}, SIZE),
            "half of it": ({"ScaLA": 0.4, "one draw": 0.0, "baseline": -0.1}, SIZE),
            "none": ({"ScaLA": 0.0, "one draw": 0.0, "baseline": 0.0}, SIGN),
            "one part none": ({"ScaLA": 0.8, "one draw": 0.8, "baseline": -0.2}, SIGN),
            "LAMB worse": ({"ScaLA": 1.4, "one draw": 0.0, "baseline": EQUAL}, SUPPORTED),
            "reversed": ({"ScaLA": -0.8, "one draw": 0.0, "baseline": 0.2}, SUPPORTED),
        },
    ),
    Rule(
        "equivalence",
        equivalence,
        make_equivalence,
        {
            "equal": ({"FreeLB": 0.0}, ("reversed",)),
            "at the margin": ({"FreeLB": EQUAL}, SIGN),
            "twice the margin": ({"FreeLB": 2 * EQUAL}, SUPPORTED),
        },
    ),
    Rule(
        "branches",
        equivalence,
        make_equal_branches,
        {
            "equal": ({"FreeLB": 0.0}, ("reversed",)),
            "at the margin": ({"FreeLB": EQUAL}, SIGN),
            "twice the margin": ({"FreeLB": 2 * EQUAL}, SUPPORTED),
        },
    ),
    Rule(
        "ratios",
        ratios,
        make_ratios,
        {
            "paper's, 2.6x and 3.9x": ({"eigenvalue": 2.6, "deviation": 3.9}, SIZE),
            "half of it": ({"eigenvalue": 2.6**0.5, "deviation": 3.9**0.5}, SIZE),
            "none": ({"eigenvalue": 1.0, "deviation": 1.0}, SIGN),
            "one part none": ({"eigenvalue": 2.6, "deviation": 1.0}, SIGN),
            "reversed": ({"eigenvalue": 1 / 2.6, "deviation": 1 / 3.9}, SUPPORTED),
        },
    ),
    Rule(
        "slope",
        slope,
        make_slope,
        {
            "paper's, -0.2": ({"slope": -0.2}, SIZE),
            "half of it": ({"slope": -0.1}, SIZE),
            "none": ({"slope": 0.0}, SIGN),
            "reversed": ({"slope": 0.2}, SUPPORTED),
        },
    ),
)


def rates(rule: Rule, truth: Truth, seeds: int, studies: int, start: int = 0) -> dict[Verdict, float]:
    """Return the share of each verdict over studies of one truth, at the usual level."""
    rng = np.random.default_rng([start, seeds])
    counts = Counter(rule.judge(rule.make(rng, truth, seeds), LEVEL).verdict for _ in range(studies))
    return {verdict: counts[verdict] / studies for verdict in get_args(Verdict)}


def rates_by_looks(rule: Rule, truth: Truth, studies: int, start: int = 0) -> dict[Verdict, float]:
    """Return the same where a study stops at the first of the looks that decides it."""
    rng = np.random.default_rng([start, max(LOOKS)])
    counts: Counter[Verdict] = Counter()
    for _ in range(studies):
        frame = rule.make(rng, truth, max(LOOKS))
        for seeds in LOOKS:
            verdict = rule.judge(frame[frame["seed"] < seeds], level_for(seeds)).verdict
            if verdict != "undecided":
                break
        counts[verdict] += 1
    return {verdict: counts[verdict] / studies for verdict in get_args(Verdict)}


@dataclass(frozen=True)
class Options:
    """Rates of each verdict over made-up studies."""

    studies: int = 1000
    """Studies per rule, truth and number of seeds."""
    seeds: tuple[int, ...] = (2, 4, 8)
    """Seeds of a study."""
    looks: bool = True
    """Also with looks at a growing number of seeds."""
    rules: tuple[str, ...] = tuple(rule.name for rule in RULES)
    """Rules to try."""


def main(options: Options) -> None:
    """Print a line per rule, truth and number of seeds, in percent."""
    heads = ("supported", "no effect", "reversed", "undecided", "wrong")
    print(f"{'rule':<12} {'truth':<23} {'seeds':>8} " + " ".join(f"{head:>9}" for head in heads))
    for rule in (rule for rule in RULES if rule.name in options.rules):
        for name, (truth, wrong) in rule.truths.items():
            found = {str(seeds): rates(rule, truth, seeds, options.studies) for seeds in options.seeds}
            if options.looks:
                found["looks"] = rates_by_looks(rule, truth, options.studies)
            for seeds, shares in found.items():
                print(f"{rule.name:<12} {name:<23} {seeds:>8} " + _line(shares, wrong), flush=True)


def _line(shares: Mapping[Verdict, float], wrong: Sequence[Verdict]) -> str:
    shown = [shares["supported"], shares[NO_EFFECT], shares["reversed"], shares["undecided"]]
    return " ".join(f"{100 * share:>9.1f}" for share in [*shown, sum(shares[verdict] for verdict in wrong)])


if __name__ == "__main__":
    main(tyro.cli(Options))
