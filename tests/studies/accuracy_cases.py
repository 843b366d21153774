"""Made-up runs for the claims on accuracy, batch sizes and noise.

Scores scatter by 0.1 points where a claim must be decidable and by 6 where it must not be. The scatter of each arm has
mean 0, so that the mean difference of two arms is the wanted effect and luck decides nothing.
"""

from __future__ import annotations

import numpy as np
from made_up import (
    ablation,
    delays,
    encoders,
    freelb,
    gaps,
    heat,
    kinds,
    longer,
    results,
    rule_rates,
    runs,
    sizes,
    table_2,
)

from studies.train_longer import LONGER

TASKS, SEEDS = ("a", "b", "c", "d"), 4
CLEAR, UNCLEAR = 0.1, 6.0
NO_EFFECT, NOT_TESTABLE = "no effect of the claimed size", "not testable here"


def scatter(count, block, stream=0):
    """Numbers of mean 0 and deviation 1 in each block."""
    luck = np.random.default_rng(stream).normal(size=(count // block, block))
    return ((luck - luck.mean(axis=1, keepdims=True)) / luck.std(axis=1, keepdims=True)).ravel()


def scattered(made, noise=CLEAR, tasks=TASKS):
    """Scatter the scores of each arm by some points, and times by 2%."""
    luck = scatter(len(made), len(tasks) * SEEDS)
    columns = {name: made[name] + noise * luck for name in ("score", "dev") if name in made}
    if "seconds" in made:
        columns["seconds"] = made["seconds"] * np.exp(0.02 * luck)
    return made.assign(**columns)


def frame(arms, noise=CLEAR, tasks=TASKS):
    """Runs of the arms."""
    return scattered(runs(arms, SEEDS, tasks), noise, tasks)


def timed(noise=CLEAR, **truth):
    """Runs and timed steps of the small batch and of ScaLA."""
    return scattered(results(SEEDS, tasks=TASKS, **truth), noise)


def trials(*arguments, **truth):
    """Trials of one seed, as they are."""
    return runs(heat(*arguments, **truth), 1)


CASES = {
    "C3": {
        "supported": trials,
        "reversed": lambda: trials(1.3),
        "undecided": lambda: trials(curvature=0.02),  # rates four times apart are as good
        NOT_TESTABLE: lambda: trials(sizes=(32, 512)),
    },
    "C4": {
        "supported": lambda: frame(gaps(1.1, -0.4)),
        "reversed": lambda: frame(gaps(1.4, 0.4)),
        NO_EFFECT: lambda: frame(gaps(0.1, 0.0)),
        "undecided": lambda: frame(gaps(0.5, 0.0), UNCLEAR),
        NOT_TESTABLE: lambda: frame(gaps(1.1, -0.4)).assign(interior=False),
    },
    "C9": {
        "supported": timed,
        "reversed": lambda: timed(accuracy=-2.0),
        "undecided": lambda: timed(UNCLEAR),
        NOT_TESTABLE: lambda: timed(workers=2),
    },
    "C10": {
        "supported": lambda: frame(table_2()),
        "reversed": lambda: frame(table_2(-0.7)),
        NO_EFFECT: lambda: frame(table_2(0.0)),
        "undecided": lambda: frame(table_2(0.3), UNCLEAR),
        NOT_TESTABLE: lambda: frame(table_2()).assign(train_loss=0.6),
    },
    "C11": {
        "supported": lambda: frame(ablation(groups=-0.4)),
        "reversed": lambda: frame(ablation(groups=-0.4, noise=0.8)),
        NO_EFFECT: lambda: frame(ablation(groups=-0.4, noise=0.0)),
        "undecided": lambda: frame(ablation(), UNCLEAR),
        NOT_TESTABLE: lambda: frame(ablation(groups=-0.4)).assign(steps=30),
    },
    "C12": {
        "supported": lambda: frame(freelb()),
        "reversed": lambda: frame(freelb(cost=1.2)),
        "undecided": lambda: frame(freelb(), UNCLEAR),
        NOT_TESTABLE: lambda: frame(freelb()).assign(chance_score=90.0),
    },
    "C13": {
        "supported": lambda: frame(kinds()),
        "reversed": lambda: frame(kinds(-0.5, 0.5, 0.5)),
        NO_EFFECT: lambda: frame(kinds(0.0, 0.0, 0.0), noise=0.02),
        "undecided": lambda: frame(kinds(), UNCLEAR),
        NOT_TESTABLE: lambda: frame(kinds()).assign(selection_split="heldout"),
    },
    "C15": {
        "supported": lambda: frame(longer()),
        "reversed": lambda: frame(longer(-1.2)),
        NO_EFFECT: lambda: frame(longer(0.1)),
        "undecided": lambda: frame(longer(0.2), UNCLEAR),
        NOT_TESTABLE: lambda: frame(longer())[lambda made: made["method"] != LONGER],
    },
    "C16": {
        "supported": lambda: frame(sizes()),
        "reversed": lambda: frame(sizes(gain=-1.0)),
        NO_EFFECT: lambda: frame(sizes(gain=0.0)),
        "undecided": lambda: frame(sizes(0.0, 0.0), UNCLEAR),
        NOT_TESTABLE: lambda: frame(sizes()).query("seed == 0"),
    },
    "C17": {
        "supported": lambda: frame(delays()),
        "reversed": lambda: frame(delays(2.0, -1.0)),
        NO_EFFECT: lambda: frame(delays(0.0, 0.0, 0.0)),
        "undecided": lambda: frame(delays(0.1, 0.2, 0.2), UNCLEAR),
        NOT_TESTABLE: lambda: frame(delays()).query("delay != 2 and delay != 3"),
    },
    "C18": {
        "supported": lambda: frame(rule_rates(0.1)),
        "reversed": lambda: frame(rule_rates(-2.0)),
        "undecided": lambda: frame(rule_rates(0.0), UNCLEAR),
        NOT_TESTABLE: lambda: frame(rule_rates(0.1)).assign(status="diverged"),
    },
    "C23": {
        "supported": timed,
        "reversed": lambda: timed(faster=0.5, scaling=1.0),
        NO_EFFECT: lambda: timed(faster=2.0, scaling=1.0),
        NOT_TESTABLE: lambda: timed(workers=2),
    },
    "C24": {
        "supported": timed,
        "reversed": lambda: timed(scaling=10.0),
        NOT_TESTABLE: lambda: timed(workers=2),
    },
    "C25": {
        "supported": lambda: frame(rule_rates()),
        "reversed": lambda: frame(rule_rates(baseline=0.5)),
        NO_EFFECT: lambda: frame(rule_rates(baseline=0.0)),
        "undecided": lambda: frame(rule_rates(), UNCLEAR),
        NOT_TESTABLE: lambda: frame(rule_rates()).assign(interior=False),
    },
    "C26": {
        "supported": lambda: scattered(encoders(SEEDS)),
        "reversed": lambda: scattered(encoders(SEEDS, -0.4)),
        NO_EFFECT: lambda: scattered(encoders(SEEDS, 0.0)),
        "undecided": lambda: scattered(encoders(SEEDS), UNCLEAR),
        NOT_TESTABLE: timed,
    },
}
