"""Each kind of part, the correction for several parts, gates, sensitivity, and the record as JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit

from scala_lab.study.gates import GATES, Gate, accuracy_gates
from scala_lab.study.statistics import Estimate, mean_interval, paired_difference
from scala_lab.study.verdicts import (
    NO_EFFECT,
    NOT_TESTABLE,
    Claim,
    at_most,
    effect,
    equivalent,
    holm,
    judge,
    no_worse,
    record,
    within,
)

CLAIM = Claim("C0", "Table 0", "a study", "A is better than B.", "+0.8", "A minus B above 0.")


def between(low, high, unit="points", level=0.95, n=4):
    """An estimate with a given interval."""
    scale = math.log if unit == "x" else float
    middle, half = (scale(low) + scale(high)) / 2, (scale(high) - scale(low)) / 2
    se = half / float(stdtrit(n - 1, (1 + level) / 2))
    value = math.exp(middle) if unit == "x" else middle
    return Estimate(value, n, se=se, df=n - 1, sd=se * math.sqrt(n), unit=unit, level=level)


NOTHING = Estimate(math.nan, unit="points")
ONE_SEED = mean_interval([0.5], "points")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.9, "supported"),
        (0.5, 0.9, "supported"),
        (0.1, 0.3, NO_EFFECT),  # of the claimed sign, but surely smaller than half of the paper's
        (-0.2, 0.3, NO_EFFECT),
        (-0.2, 0.5, "undecided"),
        (-0.5, -0.1, "reversed"),
    ],
)
def test_effect(low, high, verdict):
    assert effect("A minus B", between(low, high), 0.8).verdict == verdict
    assert effect("B minus A", between(-high, -low), -0.8).verdict == verdict
    factor = between(10**low, 10**high, "x")
    assert effect("A over B", factor, 10**0.8).verdict == verdict
    assert effect("A over B", between(10**-high, 10**-low, "x"), 10**-0.8).verdict == verdict


def test_effect_knows_whether_the_paper_is_inside_and_half_of_it():
    part = effect("A minus B", between(0.1, 0.7), 0.8)
    assert part.smallest == pytest.approx(0.4)
    assert part.paper_inside is False
    assert effect("A over B", between(2.0, 3.0, "x"), 2.56).smallest == pytest.approx(1.6)
    assert effect("A over B", between(2.0, 3.0, "x"), 2.56).paper_inside is True
    assert effect("A minus B", between(0.1, 0.3), None, smallest=0.1).verdict == "supported"
    with pytest.raises(ValueError, match="the smallest effect with its sign"):
        effect("A minus B", between(0.1, 0.3), None)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.3, 0.2, "supported"), (-0.3, 0.6, "undecided"), (0.5, 0.9, "reversed"), (-0.9, -0.5, "reversed")],
)
def test_equivalent(low, high, verdict):
    assert equivalent("A minus B", between(low, high), 0.4).verdict == verdict
    assert equivalent("A over B", between(10**low, 10**high, "x"), 10**0.4).verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.3, 2.0, "supported"), (-0.5, 2.0, "undecided"), (-0.9, -0.5, "reversed")]
)
def test_no_worse(low, high, verdict):
    assert no_worse("A minus B", between(low, high), 0.4).verdict == verdict


def test_within_and_at_most():
    cost = between(2.5, 3.0, "x")
    assert within("cost", cost, 2.0, 3.5).verdict == "supported"
    assert within("cost", cost, 2.0, 2.8).verdict == "undecided"
    assert within("cost", cost, 1.0, 2.0).verdict == "reversed"
    assert within("cost", cost, 2.0, math.inf).verdict == "supported"
    assert at_most("cost", cost, 3.5).verdict == "supported"
    assert at_most("cost", cost, 2.0).verdict == "reversed"


def test_exact_counts_may_lie_at_a_bound_but_not_at_zero():
    exact = mean_interval([2.0, 2.0], "x")
    assert within("passes", exact, 2.0, 3.0).verdict == "supported"
    assert within("passes", exact, 2.1, 3.0).verdict == "reversed"
    assert effect("factor", mean_interval([1.0, 1.0], "x"), 2.0).verdict == NO_EFFECT


def test_without_an_interval_nothing_is_decided():
    assert effect("A minus B", ONE_SEED, 0.8).verdict == "undecided"
    assert effect("A minus B", NOTHING, 0.8).verdict == NOT_TESTABLE
    assert record(CLAIM, []).verdict == NOT_TESTABLE
    assert record(CLAIM, [effect("A minus B", NOTHING, 0.8)]).why == "Not measured: A minus B."


def test_the_level_of_the_estimate_decides():
    estimate = between(0.01, 1.0)
    assert effect("A minus B", estimate, 0.8).verdict == "supported"
    assert effect("A minus B", estimate.at(0.995), 0.8).verdict == "undecided"
    claim = record(CLAIM, [effect("A minus B", estimate, 0.8)])
    assert (claim.verdict, claim.at(0.995).verdict) == ("supported", "undecided")


UP = effect("up", between(0.2, 1.0), 0.8)
OPEN = effect("open", between(-0.5, 1.0), 0.8)
NULL = effect("null", between(-0.3, 0.3), 0.8)
BARELY_DOWN = effect("barely down", between(-1.0, -0.01), 0.1)
DOWN = effect("down", between(-1.0, -0.5), 0.8)


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([UP], "supported"),
        ([UP, UP, UP, UP], "supported"),  # all parts: no correction
        ([UP, OPEN], "undecided"),
        ([UP, NULL], NO_EFFECT),
        ([UP, DOWN], "reversed"),
        ([NULL, DOWN], "reversed"),
        ([BARELY_DOWN], "reversed"),
        ([BARELY_DOWN, UP], "undecided"),  # one part of two: corrected
    ],
)
def test_a_claim_of_several_parts(parts, verdict):
    assert record(CLAIM, parts).verdict == verdict


def test_contextual_parts_have_no_say():
    aside = effect("down", between(-1.0, -0.5), 0.8, contextual=True)
    assert record(CLAIM, [UP, aside]).verdict == "supported"
    assert record(CLAIM, [aside]).verdict == NOT_TESTABLE


def test_holm_against_its_definition():
    # levels 1/4, 1/3, 1/2, 1 in the order of the p-values; all after the first failure are kept
    assert holm([0.2, 0.9, 0.3, 0.4]) == [True, True, True, True]
    assert holm([0.2, 0.4, 0.3, 0.9]) == [True, True, True, True]
    assert holm([0.2, 0.6, 0.3, 0.55]) == [True, False, True, False]
    assert holm([]) == []


def test_margins_and_smallest_effects_scale():
    def bounds(part, scale):
        moved = part.scaled(scale)
        return moved.low, moved.high, moved.smallest or moved.margin

    points, factor = between(0.1, 0.9), between(2, 3, "x")
    assert bounds(effect("A", points, 0.8), 2) == pytest.approx((0.0, math.inf, 0.8))
    assert bounds(effect("A", factor, 16.0), 0.5) == pytest.approx((1.0, math.inf, 2.0))
    assert bounds(equivalent("A", points, 0.4), 0.5) == pytest.approx((-0.2, 0.2, 0.2))
    assert bounds(no_worse("A", factor, 2.0, paper=3.0), 2) == pytest.approx((0.25, math.inf, 4.0))
    # about the middle of a range; with one open end about the paper's value, or about no effect
    assert bounds(within("A", factor, 1.0, 4.0, paper=3.0), 0.5)[:2] == pytest.approx((math.sqrt(2), 2 * math.sqrt(2)))
    assert bounds(at_most("A", points, -0.4, paper=-0.5), 2)[:2] == pytest.approx((-math.inf, -0.3))
    assert bounds(within("A", factor, 1.2, math.inf), 2)[:2] == pytest.approx((1.44, math.inf))
    assert bounds(within("A", factor, 1.2, 4.0, fixed=True), 2)[:2] == (1.2, 4.0)


# Gates

FAIR = {
    "model": "m",
    "batch_size": 512,
    "score": 90.0,
    "correct": None,
    "train_loss": 0.1,
    "chance_loss": 0.69,
    "chance_score": 50.0,
    "steps": 192,
    "rows": 20_000,
    "interior": True,
    "selection_split": "tune",
    "score_split": "test",
    "status": "finished",
}


def fair_runs(seeds=4, tasks=("sst2", "mnli"), gain=0.8):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {**FAIR, "task": task, "method": method, "seed": seed, "score": 90 + (method == "A") * gain + noise}
            for seed in range(seeds)
            for task in tasks
            for method, noise in (("A", 0.1 * rng.normal()), ("B", 0.0))
        ]
    )


def rule(frame):
    difference = paired_difference(frame, "A", "B")
    return record(CLAIM, [effect("A minus B", difference, 0.8)], accuracy_gates(frame, ["A", "B"]))


def failed(frame, **options):
    return [gate.name for gate in accuracy_gates(frame, ["A", "B"], **options) if not gate.passed]


def spoiled(frame, **columns):
    """The frame with other values in one run of A."""
    frame = frame.astype(dict.fromkeys(columns, object))
    for name, value in columns.items():
        frame.at[0, name] = value
    return frame


def test_fair_runs_pass_every_gate():
    gates = accuracy_gates(fair_runs(), ["A", "B"])
    assert [gate.name for gate in gates] == list(GATES)
    assert all(gate.passed and not gate.remedy for gate in gates)


@pytest.mark.parametrize(
    ("columns", "gate"),
    [
        ({"score": 50.6}, "clear of chance"),
        ({"rows": 0}, "clear of chance"),
        ({"train_loss": 0.43}, "fitted"),
        ({"train_loss": math.nan}, "fitted"),
        ({"interior": False}, "best setting inside"),
        ({"interior": None}, "best setting inside"),
        ({"selection_split": "test"}, "chosen on other rows"),
        ({"steps": 39}, "steps"),
        ({"status": "diverged", "score": math.nan}, "arms run"),
    ],
)
def test_one_run_that_is_not_fair_fails_its_gate(columns, gate):
    frame = spoiled(fair_runs(), **columns)
    assert failed(frame) == [gate]
    judged = rule(frame)
    assert judged.verdict == NOT_TESTABLE
    assert gate in judged.why
    assert next(each for each in judged.gates if not each.passed).remedy in judged.why


def test_a_run_clear_of_chance_by_a_little_passes():
    # two standard errors on 20,000 rows at chance 50% are 0.71 points
    assert failed(spoiled(fair_runs(), score=50.8)) == []
    assert failed(spoiled(fair_runs(), score=5.0, chance_score=0.0)) == []


def test_arms_that_a_profile_leaves_out_fail_with_a_sentence():
    frame = fair_runs()
    gates = accuracy_gates(frame, ["A", "B", "C"])
    assert not gates[0].passed
    assert "C on m, sst2" in gates[0].detail
    half = frame[(frame["method"] == "A") | (frame["task"] == "sst2")]
    assert failed(half) == ["arms run", "seeds"]
    assert failed(frame.iloc[:0]) == list(GATES)


def test_a_run_is_named_by_what_tells_it_apart():
    frame = fair_runs().assign(batch_size=[32.0, 512.0] * 8, seed=lambda runs: runs["seed"].astype(float))
    assert "A on sst2 at B=32 (seed 0) ends at 0.62 of chance's loss" in rule(spoiled(frame, train_loss=0.43)).why


def test_one_seed_fails():
    assert failed(fair_runs(seeds=1)) == ["seeds"]


def test_a_claim_may_ask_for_some_gates():
    frame = fair_runs().assign(interior=None)
    assert failed(frame) == ["best setting inside"]
    assert failed(frame, ask=["fitted", "steps"]) == []


def test_times_keep_their_verdict_where_a_gate_fails():
    time = within("time", between(2.5, 3.0, "x"), 2.0, 3.5, gated=False)
    judged = record(CLAIM, [UP, time], [Gate("fitted", False, "A is not fitted", "more steps")])
    assert judged.verdict == NOT_TESTABLE
    assert [part["verdict"] for part in judged.to_dict()["parts"]] == [NOT_TESTABLE, "supported"]


# The record


def test_sensitivity_leaves_out_seeds_and_tasks_and_moves_margins():
    judged = judge(rule, fair_runs())
    assert judged.verdict == "supported"
    found = judged.to_dict()["sensitivity"]
    assert list(found["without_seed"]) == ["0", "1", "2", "3"]
    assert list(found["without_task"]) == ["mnli", "sst2"]
    assert found["margins"] == {"0.5": "supported", "2": "supported"}
    assert (found["same"], found["of"]) == (8, 8)


def test_sensitivity_finds_a_verdict_that_hangs_on_one_seed():
    frame = fair_runs()
    outlier = (frame["seed"] == 3) & (frame["method"] == "A")
    frame.loc[outlier, "score"] -= 3
    found = judge(rule, frame).sensitivity
    assert found["without_seed"]["3"] == "supported"
    assert found["same"] < found["of"]


@pytest.mark.parametrize(
    "parts",
    [
        [UP, OPEN, NULL, DOWN],
        [effect("A minus B", NOTHING, 0.8), effect("A over B", mean_interval([1.0], "x"), None, smallest=0.5)],
        [within("cost", mean_interval([2.0, 2.0], "x"), 0.0, math.inf), equivalent("A", between(-9e3, 9e3), 1e-3)],
        [],
    ],
)
def test_the_record_is_json_without_nan(parts):
    entry = record(CLAIM, parts).to_dict()
    text = json.dumps(entry, allow_nan=False)
    assert {"id", "source", "study", "statement", "paper", "measured", "interval", "rule", "verdict"} <= set(entry)
    assert {"gates", "parts", "sensitivity", "why"} <= set(entry)
    assert json.loads(text)["why"]


def test_an_undecided_part_says_what_it_would_take():
    (part,) = record(CLAIM, [OPEN]).to_dict()["parts"]
    assert part["detectable"] == pytest.approx(OPEN.estimate.detectable())
    assert part["n_needed"] == OPEN.estimate.n_needed(0.4)
    hopeless = effect("A minus B", between(-90.0, 90.0), 0.8)
    (part,) = record(CLAIM, [hopeless]).to_dict()["parts"]
    assert part["n_needed"] == "more than 1,000"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (
            [UP],
            "up is +0.6 points [+0.2, +1] (n=4 seeds): its 95% interval lies above 0, and contains the paper's +0.8 "
            "points.",
        ),
        (
            [NULL],
            "null is +0 points [-0.3, +0.3] (n=4 seeds): its 95% interval lies below +0.4 points (half of the "
            "paper's).",
        ),
        ([DOWN], "down is -0.75 points [-1, -0.5] (n=4 seeds): its 95% interval lies below 0."),
        (
            [OPEN],
            "open is +0.25 points [-0.5, +1] (n=4 seeds): neither 0 nor +0.4 points is excluded; with 4 seeds, four of "
            "five studies would find an effect of 1 points; about 13 seeds would decide it.",
        ),
        (
            [no_worse("A minus B", between(-0.9, -0.5), 0.4)],
            "A minus B is -0.7 points [-0.9, -0.5] (n=4 seeds): its 95% interval lies outside of the claimed range, at "
            "least -0.4 points.",
        ),
    ],
)
def test_why_reads_as_a_person_would_say_it(parts, why):
    assert record(CLAIM, parts).why == why


def test_sentences_name_the_unit_of_replication():
    times = mean_interval([1.5, 2.0, 2.6], "x", counts="timed steps")
    assert str(times) == "1.98x [1, 3.93] (n=3 timed steps)"
    why = record(CLAIM, [within("cost", times, 1.9, 3.5)]).why
    assert "seed" not in why
    assert "with 3 timed steps, four of five" in why
    assert "timed steps would decide it" in why
    one = record(CLAIM, [within("cost", mean_interval([2.0], "x", counts="problems"), 1.9, 3.5)])
    assert one.why == "cost is 2x (n=1 problem, no interval): 1 problem gives no interval."
    assert one.to_dict()["parts"][0]["counts"] == "problems"
