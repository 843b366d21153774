"""How often the rule of each claim is right: rates of its verdicts over made-up studies of known truth.

    python benchmarks/verdict_rates.py [--studies 1000] [--claims C10 C12]

Every study is judged by the claim's own function, such as `c10` in studies/large_batch_methods.py, on the runs of
made_up.py with the noise of real ones. Differences of accuracy vary between seeds by 0.3 points where two arms share a
trunk and by 0.75 where they do not, ratios of eigenvalues by 0.3 in their logarithm, times of a step by 3%. A study has
2, 4 or 8 units (seeds, timed steps or replicas, as the claim has it), or is looked at after 4, 6 and 8 seeds.

A rule gets the units of many studies at once, and each study's estimates are computed from its own units. Estimates are
means over units, so this is what the rule would return for the study alone, only faster. Where they are not, the rule
is called for every study: C3, C19, C28, and truths with answers. The latter have 20,000 evaluation rows, drawn anew for
each study, on which 4% of answers differ between two arms, so that the truth is about all rows there could be;
elsewhere it is about the rows that are scored.

`wrong` adds up the verdicts that the truth forbids. At the end of a claimed range only one can be wrong, "reversed"
just inside and "supported" just outside: there the larger share counts. What else is not the truth's own verdict is a
lack of power. The last table has each claim's largest share of wrong verdicts, and its power: the share of studies that
support it where it is as claimed.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean
from typing import get_args

import made_up
import numpy as np
import pandas as pd
import tyro
from measures import RESULTS

from scala_lab.files import write_json
from scala_lab.machine import describe_environment
from scala_lab.study.api import all_studies
from scala_lab.study.statistics import mean_interval
from scala_lab.study.verdicts import EQUAL, LOOKS, NO_EFFECT, SAME_RATIO, SINGLE_LOOK, SLACK, ClaimRecord, Rule, Verdict
from studies import convergence
from studies._timings import GAIN
from studies.dropout_confound import SMALL_SHARE
from studies.flatness import LARGEST
from studies.generalizability import ABOUT_SQRT
from studies.main_results import OVER_ONE

BRANCH, OTHER = 0.3, 0.75
"""Standard deviation between seeds of a difference of two arms, in points: with a shared trunk, and without."""
OWN, TRUNK = BRANCH / math.sqrt(2), math.sqrt((OTHER**2 - BRANCH**2) / 2)
"""What follows for a run after its trunk, and for the trunk."""
LOGS = {
    **dict.fromkeys(("eigenvalue", "deviation", "matched", LARGEST), 0.3 / math.sqrt(2)),
    **dict.fromkeys(("seconds", "without"), 0.03),
    "divergence": 0.1 / math.sqrt(2),
}
"""Standard deviations of logarithms, by column."""
LEVELS, POINTS = 0.5, 1.0
"""Of C28's methods, which are drawn anew for each study: of the logarithm of sharpness, and of accuracy in points."""
BEND, REPLICA, HORIZON = 0.1, 0.2, 0.02
"""Of C20's steepness between problems; of the logarithm of a squared gradient between replicas, and in one over T."""
ROWS, ACTIVE, STEADY, VARYING = 20_000, 4_000, 0.005, 0.015
"""Evaluation rows, those whose answers can vary, and shares of all that an arm changes in every seed, or by chance."""
COUNTS = (2, 4, 8)
"""Units of a study."""
BATCH = 250
"""Studies whose runs are made at once."""

SIGN: tuple[Verdict, ...] = ("supported", "reversed")
SIZE: tuple[Verdict, ...] = ("reversed", NO_EFFECT)
SUPPORTED: tuple[Verdict, ...] = ("supported",)

RULES: dict[str, Rule] = {
    claim.id: getattr(sys.modules[study.cells.__module__], claim.id.lower())
    for study in all_studies().values()
    for claim in study.claims
}
"""The function that judges each claim."""


@dataclass(frozen=True)
class Truth:
    """What is true of the runs, as arguments of their maker, and the verdicts that are wrong then."""

    values: Mapping[str, float]
    wrong: tuple[Verdict, ...]
    either: bool = False  # whether only one of them is wrong, but which one hangs on a hair
    answers: bool = False  # whether runs have answers on rows


@dataclass(frozen=True)
class Simulation:
    """How the runs of a claim are made up, and the truths that are tried."""

    make: Callable[..., pd.DataFrame]  # from the number of units and a truth's values
    truths: Mapping[str, Truth]
    unit: str = "seed"  # the column that counts units
    counts: Sequence[int] = COUNTS
    means: bool = True  # whether every estimate is a mean over units


def truths(
    effects: Mapping[str, float] | None = None,
    nulls: Sequence[Mapping[str, float]] = (),
    ends: Sequence[Mapping[str, float]] = (),
    false: Sequence[Mapping[str, float]] = (),
    null: float = 0.0,
) -> dict[str, Truth]:
    """Return the usual truths.

    Args:
        effects: The paper's effects; `null` is the value of none, 1 for factors.
        nulls: Values at which one effect is none: neither sign may be found.
        ends: Values at which one part lies at the end of its range. Just inside, it may not be reversed, and just
            outside, it may not be supported: the larger share counts.
        false: Values at which one is plainly false.
        null: The value of no effect.
    """
    effects, found = effects or {}, {"as claimed": Truth({}, SIZE)}
    if effects:
        away = {name: math.log(value) if null else value for name, value in effects.items()}
        shares = {"half of it": (0.5, SIZE), "none": (0.0, SIGN), "reversed": (-1.0, SUPPORTED)}
        for name, (share, wrong) in shares.items():
            values = {key: math.exp(share * value) if null else share * value for key, value in away.items()}
            found[name] = Truth(values, wrong)
    for kind, wrong, either in ((nulls, SIGN, False), (ends, SIGN, True), (false, SUPPORTED, False)):
        for values in kind:
            found[", ".join(f"{name} {value:.3g}" for name, value in values.items())] = Truth(values, wrong, either)
    return found


def with_answers(found: dict[str, Truth], name: str) -> dict[str, Truth]:
    """Return the truths, and one of them again with answers on rows."""
    return {**found, f"{name}, answers": replace(found[name], answers=True)}


def seeded(arms: Callable[..., made_up.Arms]) -> Callable[..., pd.DataFrame]:
    """Return the maker of runs from that of a claim's arms."""
    return lambda seeds, **values: made_up.runs(arms(**values), seeds)


def sides(name: str, bound: float, null: float = 0.0) -> list[dict[str, float]]:
    """Return the values at both ends of an equivalence."""
    return [{name: bound}, {name: 1 / bound if null else -bound}]


SIMULATIONS: dict[str, Simulation] = {
    "C1": Simulation(
        made_up.small,
        truths(
            ends=[{"up_to": GAIN}, {"beyond": GAIN}, {"silent": GAIN}],
            false=[{"up_to": 1.0, "silent": 1.0}],
        ),
        unit="step",
    ),
    "C2": Simulation(
        made_up.large,
        truths(ends=[{"last": GAIN}, {"gain": GAIN, "last": GAIN}], false=[{"gain": 1.0, "last": 1.0}]),
        unit="step",
    ),
    "C3": Simulation(
        seeded(made_up.heat),
        truths(ends=[{"exponent": end} for end in ABOUT_SQRT], false=[{"exponent": 0.0}]),
        counts=(1,),
        means=False,
    ),
    "C4": Simulation(
        seeded(made_up.gaps),
        truths({"gap": 0.9, "slope": -0.27}, nulls=[{"gap": 0.0}, {"slope": 0.0}]),
    ),
    "C5": Simulation(
        seeded(made_up.sharpness),
        truths({"large": 2.6, "deviation": 3.9}, nulls=[{"large": 1.0}, {"deviation": 1.0}], null=1.0),
    ),
    "C6": Simulation(
        seeded(made_up.sharpness),
        truths(
            {"large": 2.6, "scala": 2.6 / 6.9},
            nulls=[{"large": 2.6 / 6.9}],
            ends=[{"large": 6.9 * SAME_RATIO, "scala": SAME_RATIO}],
            null=1.0,
        ),
    ),
    "C7": Simulation(
        made_up.phases,
        truths(
            ends=[
                *({"inner": 3 * factor - 2} for factor in (1 / SLACK, SLACK)),
                *({"backward": 2 * factor} for factor in (1 / SLACK, SLACK)),
                *({"optimizer": factor} for factor in (1 / SLACK, SLACK)),
            ],
            false=[{"inner": 0.1, "backward": 1.0}],
        ),
        unit="step",
    ),
    "C8": Simulation(seeded(made_up.ascents), truths(ends=[{"gain": EQUAL}], false=[{"gain": 2 * EQUAL}])),
    "C9": Simulation(
        made_up.results,
        truths(
            ends=[{"accuracy": -EQUAL}, {"faster": 2.7 / SLACK}, {"faster": 9.8 * SLACK}],
            false=[{"faster": 1.0}],
        ),
    ),
    "C10": Simulation(
        seeded(made_up.table_2),
        with_answers(
            truths(
                {"over_lamb": 0.8, "lamb": 0.2},
                nulls=[{"over_lamb": 0.0, "lamb": 1.0}, {"over_lamb": EQUAL, "lamb": -EQUAL}],
                ends=[{"over_lamb": 1.4, "lamb": -EQUAL}],
            ),
            "none",
        ),
    ),
    "C11": Simulation(
        seeded(made_up.ablation),
        truths(
            {"groups": -0.2, "noise": -0.8},
            nulls=[{"groups": 0.0}, {"noise": 0.0}],
            ends=sides("delay", EQUAL),
        ),
    ),
    "C12": Simulation(
        seeded(made_up.freelb),
        with_answers(truths(ends=sides("accuracy", EQUAL), false=[{"accuracy": 2 * EQUAL}]), "accuracy 0.4"),
    ),
    "C13": Simulation(
        seeded(made_up.kinds),
        truths(
            {"target": 0.4, "direction": 0.3, "random": 0.3},
            nulls=[{"target": 0.0}, {"direction": 0.0}, {"random": 0.0}],
        ),
    ),
    "C14": Simulation(
        made_up.methods,
        truths({"saved": 1.1**2}, ends=[{"gain": GAIN}, {"baseline": GAIN}], null=1.0),
        unit="step",
    ),
    "C15": Simulation(seeded(made_up.longer), truths({"gain": 1.2})),
    "C16": Simulation(
        seeded(made_up.sizes),
        truths({"slope": -0.19, "gain": 1.0}, nulls=[{"slope": 0.0}, {"gain": 0.0}, {"last": 0.0}]),
    ),
    "C17": Simulation(
        seeded(made_up.delays),
        truths(
            {"over_start": 2 * EQUAL, "over_last": 2 * EQUAL},
            nulls=[{"over_start": 0.0}, {"over_last": 0.0}],
            ends=[{"start": EQUAL}],
        ),
    ),
    "C18": Simulation(seeded(made_up.rule_rates), truths(ends=sides("scala", EQUAL), false=[{"scala": -2 * EQUAL}])),
    "C19": Simulation(
        partial(made_up.outer, wide=0.5, settings=[made_up.SETTINGS[place] for place in (0, 4, 5)]),
        truths(ends=[{"tight": 1.0}, {"wide": 1.0}]),
        unit="replica",
        means=False,
    ),
    "C20": Simulation(
        partial(made_up.inner, ratios=(1.5, 4.0)),
        truths(ends=[{"bend": 0.5}], false=[{"worst": 1.4}]),
        unit="problem",
    ),
    "C21": Simulation(
        seeded(made_up.causes),
        truths(
            {"draws": 0.8},
            ends=[
                *(*sides("scala", EQUAL), *sides("noise", EQUAL), *sides("by_draws", SAME_RATIO, null=1.0)),
                {"by_noise": SMALL_SHARE},
            ],
        ),
    ),
    "C22": Simulation(made_up.outer, truths(ends=[{"wide": 1.0}, {"wide": 32.0}], false=[{"wide": 0.3}]), "replica"),
    "C23": Simulation(
        partial(made_up.results, scaling=1.0, faster=geometric_mean(OVER_ONE)),
        truths({"faster": geometric_mean(OVER_ONE)}, null=1.0),
    ),
    "C24": Simulation(
        made_up.results,
        truths(ends=[{"scaling": 1.5 / SLACK}, {"scaling": 2.4 * SLACK}], false=[{"scaling": 1.0}]),
    ),
    "C25": Simulation(seeded(made_up.rule_rates), truths({"baseline": -0.7})),
    "C26": Simulation(made_up.encoders, truths({"gain": 0.4}, ends=[{"bert": -EQUAL}, {"roberta": -EQUAL}])),
    "C27": Simulation(
        made_up.outer,
        truths(
            ends=[{"power": -0.5 + convergence.SLACK}, {"added": 1.0}, {"kappa_power": 1.0}], false=[{"power": -0.2}]
        ),
        unit="replica",
    ),
    "C28": Simulation(
        lambda seeds, **truth: made_up.runs(made_up.flatness(**truth), seeds).assign(
            study=lambda frame: frame["seed"] // max(COUNTS)
        ),
        truths({"relation": -0.95}),
        means=False,
    ),
}


def vary(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Add the noise of real runs to what a made-up frame measures."""

    def noise(*shared: str) -> np.ndarray:
        """Return a normal number per row, the same for rows that share all of these columns."""
        if not shared:
            return rng.normal(size=len(frame))
        groups = frame.groupby(list(shared), sort=False, dropna=False).ngroup().to_numpy()
        return rng.normal(size=groups.max() + 1)[groups]

    columns = {name: frame[name] * np.exp(sd * noise()) for name, sd in LOGS.items() if name in frame}
    if "score" in frame:
        score = frame["score"]
        if "doublings" in frame:  # the best rate lies anywhere between two of the grid
            place = rng.uniform(-0.5, 0.5, size=frame["seed"].max() + 1)[frame["seed"]]
            score = made_up.LEVEL - frame["curvature"] * (frame["doublings"] + place) ** 2
        if "relation" in frame:
            sharp, other, relation = noise("study", "trunk"), noise("study", "trunk"), frame["relation"]
            columns[LARGEST] *= np.exp(LEVELS * sharp)
            score = score + POINTS * (relation * sharp + np.sqrt(1 - relation**2) * other)
        columns["score"] = score + OWN * noise() + TRUNK * noise("trunk", "model", "task", "seed")
    if "dev" in frame:
        columns["dev"] = frame["dev"] + OTHER / math.sqrt(2) * noise()
    if "bend" in frame:
        columns["bend"] = frame["bend"] + BEND * noise()
    if "value" in frame:
        exact = REPLICA * noise("kappa", "clip", "replica") + HORIZON * noise("steps", "replica")
        by_error = REPLICA * noise("epsilon", "replica")
        value = (frame["value"] - frame["added"]) * np.exp(exact) + frame["added"] * np.exp(by_error)
        columns["value"] = value
    return frame.assign(**columns)


def answered(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Turn the scores of a study on one task into answers on rows, with the noise of real runs.

    On the rows that can vary, half of which are right otherwise, an arm changes some answers in every seed and others
    by chance, more of them up than down as its score wants. The deviation between seeds includes that chance.
    """
    seeds = frame["seed"].nunique()
    scores = frame["score"].to_numpy().reshape(-1, seeds)  # arms x seeds
    trunks = frame["trunk"].factorize()[0][::seeds]
    chance, steady, varying = 100**2 * VARYING / ROWS, STEADY * ROWS / ACTIVE, VARYING * ROWS / ACTIVE
    lean = scores - scores.mean() + TRUNK * rng.normal(size=scores.shape)[trunks]
    lean += math.sqrt(OWN**2 - chance) * rng.normal(size=scores.shape)
    more = (lean / (100 * ACTIVE / ROWS * (1 - steady)))[..., None]  # of a row's chance to change, up or down
    right = np.arange(ACTIVE) % 2 == 0
    changed = rng.random((*scores.shape, ACTIVE), dtype=np.float32) < np.where(right, varying - more, varying + more)
    changed |= rng.random((len(scores), 1, ACTIVE), dtype=np.float32) < steady
    correct = np.ones((scores.size, ROWS), dtype=np.uint8)
    correct[:, :ACTIVE] = (right ^ changed).reshape(scores.size, ACTIVE)
    return frame.assign(score=100 * correct.mean(axis=1), correct=list(correct))


Study = Callable[[int], ClaimRecord]
"""Judges a made-up study by its first units, given how many."""


def cut(whole: ClaimRecord, start: int, units: int) -> ClaimRecord:
    """Return the record of one study from that of many: the deciding parts with estimates from its own units."""
    parts = []
    for part in whole.deciding:
        numbers = part.estimate.numbers[start : start + units]
        parts.append(replace(part, estimate=mean_interval(numbers, part.estimate.unit)) if numbers else part)
    return replace(whole, parts=tuple(parts))


def studies_of(claim: str, truth: Truth, studies: int, rng: np.random.Generator) -> Iterator[Study]:
    """Yield made-up studies of a claim."""
    rule, simulation = RULES[claim], SIMULATIONS[claim]
    unit, most = simulation.unit, max(simulation.counts)

    def alone(frame: pd.DataFrame) -> Study:
        return lambda units: rule(frame[frame[unit] % most < units])

    if truth.answers:
        frame = simulation.make(most, **truth.values)
        yield from (alone(answered(frame, rng)) for _ in range(studies))
        return
    for start in range(0, studies, BATCH):
        count = min(BATCH, studies - start)
        frame = vary(simulation.make(count * most, **truth.values), rng)
        if simulation.means:
            whole = rule(frame)
            yield from (partial(cut, whole, place * most) for place in range(count))
        else:
            yield from (alone(study) for _, study in frame.groupby(frame[unit] // most))


def rates(claim: str, name: str, studies: int) -> dict[str, dict[Verdict, float]]:
    """Return the share of each verdict under a truth of a claim, by number of units and for studies with looks."""
    simulation = SIMULATIONS[claim]
    truth = simulation.truths[name]
    looks = simulation.means and not truth.answers and simulation.unit == "seed"
    counts: dict[str, Counter[Verdict]] = {str(units): Counter() for units in simulation.counts}
    rng = np.random.default_rng([int(claim[1:]), list(simulation.truths).index(name)])
    for study in studies_of(claim, truth, studies, rng):
        records = {units: study(units).at(SINGLE_LOOK) for units in simulation.counts}
        for units, record in records.items():
            counts[str(units)][record.verdict] += 1
        if looks:
            verdicts = ((records.get(units) or study(units)).at(level).verdict for units, level in LOOKS.items())
            decided = next((verdict for verdict in verdicts if verdict != "undecided"), "undecided")
            counts.setdefault("looks", Counter())[decided] += 1
    return {
        units: {verdict: found[verdict] / studies for verdict in get_args(Verdict)} for units, found in counts.items()
    }


def wrong_share(shares: Mapping[Verdict, float], truth: Truth) -> float:
    """Return the share of verdicts that a truth forbids."""
    return (max if truth.either else sum)(shares[verdict] for verdict in truth.wrong)


@dataclass(frozen=True)
class Options:
    """Rates of each claim's verdicts over made-up studies."""

    studies: int = 1000
    """Studies per claim, truth and number of units."""
    claims: tuple[str, ...] = tuple(SIMULATIONS)
    """Claims to try; verdict_rates.json (by claim) and .csv (all) in benchmarks/results are written where all are."""


def main(options: Options) -> None:
    """Print a line per claim, truth and number of units, in percent, and a table with a line per claim."""
    started, found = time.monotonic(), []
    heads = ("supported", "no effect", "reversed", "undecided", "untested", "wrong")
    print(f"{'claim':<5} {'truth':<28} {'units':>5} " + " ".join(f"{head:>9}" for head in heads))
    for claim in options.claims:
        for name, truth in SIMULATIONS[claim].truths.items():
            for units, shares in rates(claim, name, options.studies).items():
                wrong = wrong_share(shares, truth)
                line = " ".join(f"{100 * share:>9.1f}" for share in (*shares.values(), wrong))
                print(f"{claim:<5} {name:<28} {units:>5} {line}", flush=True)
                found.append({"claim": claim, "truth": name, "units": units, **shares, "wrong": wrong})
    table = summary(pd.DataFrame(found))
    print(f"\nLargest share of wrong verdicts, and power, in percent:\n{table.to_string(float_format='{:.1f}'.format)}")
    if options.claims == Options().claims:
        about = {"studies": options.studies, "seconds": round(time.monotonic() - started)}
        content = {"settings": about, "environment": describe_environment()}
        write_json(RESULTS / "verdict_rates.json", {**content, "claims": table.reset_index().to_dict("records")})
        pd.DataFrame(found).round(4).to_csv(RESULTS / "verdict_rates.csv", index=False)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return a row per claim: its largest share of wrong verdicts, where, and its power by number of units."""
    worst = found.loc[found.groupby("claim", sort=False)["wrong"].idxmax()].set_index("claim")
    power = found[found["truth"] == "as claimed"].pivot(index="claim", columns="units", values="supported")
    table = worst[["wrong", "truth", "units"]].assign(wrong=100 * worst["wrong"])
    return table.join((100 * power).rename(columns="power at {}".format))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
