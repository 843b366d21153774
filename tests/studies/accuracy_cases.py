"""Made-up runs for the claims on accuracy, batch sizes and noise.

Scores scatter by 0.1 points where a claim must be decidable and by 6 where it must not be. The scatter of each method
has mean 0, so that the mean difference of two methods is the wanted effect and luck decides nothing.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd

from scala_lab.study.variants import (
    BASELINE,
    FREELB,
    GAUSSIAN,
    LAMB,
    SCALA,
    SCALA_EARLY,
    SCALA_OTHER,
    SCALA_TUNED,
    SMALL_BATCH,
    WITHOUT_DELAY,
)
from studies.ablation import WITHOUT_GROUPS, WITHOUT_NOISE
from studies.lr_scaling import RULED, TUNED
from studies.main_results import SECONDS
from studies.perturbation_kinds import SCALA_GT, SCALA_LP
from studies.train_longer import LONGER

TASKS, SEEDS = ("a", "b", "c", "d"), (0, 1, 2, 3)
CLEAR, UNCLEAR = 0.1, 6.0
TRAINED = {
    **{"model": "m", "status": "finished", "rows": 20_000, "chance_score": 50.0, "train_loss": 0.1, "chance_loss": 0.7},
    **{"interior": True, "selection_split": "tuning", "score_split": "heldout", "steps": 192, "forward_passes": 18.0},
}
"""What every run has that passes all gates."""
NO_EFFECT, NOT_TESTABLE = "no effect of the claimed size", "not testable here"


def scatter(count, stream):
    """Numbers of mean 0 and deviation 1."""
    values = np.random.default_rng(stream).normal(size=count)
    return (values - values.mean()) / values.std()


def frame(rows, tasks=TASKS, seeds=SEEDS, noise=CLEAR):
    """One run per row, task and seed; the `score` of a row is what it adds to the task's level."""
    made = []
    pairs = list(itertools.product(range(len(tasks)), seeds))
    for stream, row in enumerate(rows):
        for (index, seed), luck in zip(pairs, scatter(len(pairs), [stream, 0]), strict=True):
            score = 80 + 3 * index + row.get("score", 0.0) + noise * luck
            made.append({**TRAINED, "task": tasks[index], "seed": seed, **row, "score": score})
    return pd.DataFrame(made)


def methods(scores, noise=CLEAR, **columns):
    """Runs of variants, or methods by name, and what each adds to the score; ScaLA has two t_s that are alike."""
    rows = [{"method": getattr(variant, "method", variant), "score": score, **columns} for variant, score in scores]
    rows += [{**row, "method": SCALA_OTHER.method} for row in rows if row["method"] == SCALA_TUNED.method]
    return frame(rows, noise=noise)


def heat(exponent, sizes=(32, 512, 2048), curvature=1.0, points=5, rows=4000):
    """Trials whose scores fall with the square of log2 rate from a best rate that grows with B to that exponent."""
    made = []
    for batch_size in sizes:
        best = 2e-4 * (batch_size / 32) ** exponent
        centre = 2e-4 * math.sqrt(batch_size / 32)
        steps = range(-(points // 2), points // 2 + 1)
        low = round(math.log2(best / centre))
        for rate in (centre * 2.0 ** (step + low) for step in steps):
            score = 80 - curvature * math.log2(rate / best) ** 2
            place = {"batch_size": batch_size, "rate": rate, "seed": 100, "score": score}
            made.append({**TRAINED, "task": "a", "method": "plain", **place, "rows": rows, "interior": math.nan})
    return pd.DataFrame(made)


def gaps(at_first, per_doubling, noise=CLEAR):
    """Accuracy over batch sizes: a first gap to the small one and what each doubling adds."""
    large = [
        {"batch_size": 2 ** (8 + doublings), "score": -at_first - per_doubling * doublings} for doublings in range(4)
    ]
    return frame([{"batch_size": 32, "score": 0.0}, *large], tasks=("a",), noise=noise)


def results(accuracy=0.0, times=((1, 100.0, 60.0), (32, 50.0, 10.0)), noise=CLEAR, **columns):
    """Runs of the small batch and ScaLA, and timed steps: workers, seconds of the baseline and of ScaLA."""
    runs = methods([(SMALL_BATCH, 0.0), (SCALA_TUNED, accuracy)], noise, kind=None, workers=1, dev=90.0, **columns)
    timed = [
        {"kind": SECONDS, "model": "m", "task": task, "method": variant.method, "workers": workers, "step": step}
        | {"seconds": seconds * math.exp(0.02 * luck)}
        for workers, *both in times
        for place, (variant, seconds) in enumerate(zip((SMALL_BATCH, SCALA_TUNED), both, strict=True))
        for task in TASKS
        for step, luck in enumerate(scatter(4, [workers, place]))
    ]
    return pd.concat([runs, pd.DataFrame(timed)], ignore_index=True)


def encoders(gain, noise=CLEAR):
    """Both encoders of the paper on its tasks: their baselines reach what was published, ScaLA gains so much."""
    dev = (
        {"mnli": 84.8, "qnli": 90.6, "qqp": 91.0, "sst2": 93.1},
        {"mnli": 90.5, "qnli": 94.7, "qqp": 92.0, "sst2": 96.4},
    )
    parts = []
    for model, scores in zip(("bert-base-uncased", "roberta-large"), dev, strict=True):
        rows = [{"method": SMALL_BATCH.method}, {"method": SCALA_TUNED.method, "score": gain}]
        runs = frame(rows, tasks=tuple(scores), noise=noise).assign(model=model, kind=None, workers=32)
        luck = noise * scatter(len(runs), 7)
        parts.append(runs.assign(dev=[scores[task] for task in runs["task"]] + luck))
    return pd.concat(parts, ignore_index=True)


def ablation(cost, without_groups, without_noise, without_delay=0.1, noise=CLEAR):
    rows = [
        {"method": SCALA_TUNED.method, "forward_passes": 28.0},
        {"method": SCALA_OTHER.method, "forward_passes": 23.0},
        {"method": WITHOUT_DELAY.method, "score": without_delay, "forward_passes": 28 * cost},
        {"method": WITHOUT_GROUPS.method, "score": without_groups},
        {"method": WITHOUT_NOISE.method, "score": without_noise},
    ]
    return frame(rows, noise=noise)


def freelb(accuracy, cost, noise=CLEAR):
    rows = [
        {"method": SCALA.method, "forward_passes": 20.0},
        {"method": SCALA_EARLY.method, "forward_passes": 33.0},
        {"method": FREELB.method, "score": accuracy, "forward_passes": 20 * cost},
    ]
    return frame(rows, noise=noise)


def sizes(per_doubling, lamb, scala, noise=CLEAR):
    rows = [
        {"method": variant.method, "batch_size": 2**power, "score": above - per_doubling * (power - 5)}
        for variant, above in ((BASELINE, 0.0), (LAMB, lamb), (SCALA_TUNED, scala), (SCALA_OTHER, scala))
        for power in (5, 9, 10, 11)
    ]
    return frame(rows, tasks=("a", "b"), noise=noise)


def delays(start, middle, late, noise=CLEAR):
    """What noise from each t_s on adds to none."""
    rows = [
        {"delay": delay, "score": score}
        for delay, score in ((0.0, start), (2.0, middle), (3.0, middle), (5.0, late), (math.inf, 0.0))
    ]
    return frame(rows, tasks=("a", "b"), noise=noise)


def kinds(target, direction, random, noise=CLEAR):
    """What LP gains over GT, GT over Gaussian noise, and that over none."""
    scores = (LAMB, 0.0), (GAUSSIAN, random), (SCALA_GT, random + direction), (SCALA_LP, random + direction + target)
    return methods([(BASELINE, 0.0), *scores], noise)


def table_2(scala, lamb, noise=CLEAR, **columns):
    return methods([(SCALA_TUNED, scala), (LAMB, lamb), (BASELINE, 0.0)], noise, **columns)


def longer(gain, noise=CLEAR):
    return methods([(SCALA_TUNED, gain), (LONGER, 0.0), (BASELINE, -0.2)], noise)


def rule_rates(scala, baseline, noise=CLEAR):
    """ScaLA by rule over ScaLA tuned, and the baseline by rule over the small batch."""
    scores = (TUNED[1], 0.0), (RULED[1], scala), (SMALL_BATCH, 0.0), (RULED[0], baseline), (TUNED[0], baseline)
    return methods(scores, noise)


CASES = {
    "C3": {
        "supported": lambda: heat(0.5),
        "reversed": lambda: heat(1.3),
        "undecided": lambda: heat(0.5, curvature=0.02),  # rates four times apart are as good
        NOT_TESTABLE: lambda: heat(0.5, sizes=(32, 512)),
    },
    "C4": {
        "supported": lambda: gaps(0.5, 0.4),
        "reversed": lambda: gaps(2.0, -0.4),
        NO_EFFECT: lambda: gaps(0.1, 0.0),
        "undecided": lambda: gaps(0.5, 0.0, UNCLEAR),
        NOT_TESTABLE: lambda: gaps(0.5, 0.4).assign(interior=False),
    },
    "C9": {
        "supported": results,
        "reversed": lambda: results(-2.0),
        "undecided": lambda: results(0.0, noise=UNCLEAR),
        NOT_TESTABLE: lambda: results(times=((1, 100.0, 60.0), (2, 60.0, 30.0))),
    },
    "C10": {
        "supported": lambda: table_2(1.0, 0.2),
        "reversed": lambda: table_2(-0.5, 0.2),
        NO_EFFECT: lambda: table_2(0.2, 0.2),
        "undecided": lambda: table_2(0.5, 0.2, UNCLEAR),
        NOT_TESTABLE: lambda: table_2(1.0, 0.2, train_loss=0.6),
    },
    "C11": {
        "supported": lambda: ablation(1.7, -0.4, -0.8),
        "reversed": lambda: ablation(1.7, -0.4, 0.8),
        NO_EFFECT: lambda: ablation(1.7, -0.4, 0.0),
        "undecided": lambda: ablation(1.7, -0.2, -0.8, noise=UNCLEAR),
        NOT_TESTABLE: lambda: ablation(1.7, -0.4, -0.8).assign(steps=30),
    },
    "C12": {
        "supported": lambda: freelb(0.1, 2.7),
        "reversed": lambda: freelb(0.1, 1.2),
        "undecided": lambda: freelb(0.1, 2.7, UNCLEAR),
        NOT_TESTABLE: lambda: freelb(0.1, 2.7).assign(chance_score=90.0),
    },
    "C13": {
        "supported": lambda: kinds(0.4, 0.3, 0.3),
        "reversed": lambda: kinds(-0.5, 0.5, 0.5),
        NO_EFFECT: lambda: kinds(0.0, 0.0, 0.0, noise=0.02),
        "undecided": lambda: kinds(0.4, 0.3, 0.3, UNCLEAR),
        NOT_TESTABLE: lambda: kinds(0.4, 0.3, 0.3).assign(selection_split="heldout"),
    },
    "C15": {
        "supported": lambda: longer(1.2),
        "reversed": lambda: longer(-1.2),
        NO_EFFECT: lambda: longer(0.1),
        "undecided": lambda: longer(0.2, UNCLEAR),
        NOT_TESTABLE: lambda: longer(1.2)[lambda made: made["method"] != LONGER],
    },
    "C16": {
        "supported": lambda: sizes(0.4, 0.1, 0.9),
        "reversed": lambda: sizes(0.4, 0.3, -0.5),
        NO_EFFECT: lambda: sizes(0.4, 0.0, 0.0),
        "undecided": lambda: sizes(0.0, 0.0, 0.0, UNCLEAR),
        NOT_TESTABLE: lambda: sizes(0.4, 0.1, 0.9).query("seed == 0"),
    },
    "C17": {
        "supported": lambda: delays(0.1, 1.0, 0.3),
        "reversed": lambda: delays(2.0, 1.0, 0.3),
        NO_EFFECT: lambda: delays(0.0, 0.0, 0.0),
        "undecided": lambda: delays(0.1, 0.3, 0.1, UNCLEAR),
        NOT_TESTABLE: lambda: delays(0.1, 1.0, 0.3).query("delay != 2 and delay != 3"),
    },
    "C18": {
        "supported": lambda: rule_rates(0.1, -0.7),
        "reversed": lambda: rule_rates(-2.0, -0.7),
        "undecided": lambda: rule_rates(0.0, 0.0, UNCLEAR),
        NOT_TESTABLE: lambda: rule_rates(0.1, -0.7).assign(status="diverged"),
    },
    "C23": {
        "supported": results,
        "reversed": lambda: results(times=((1, 10.0, 60.0), (32, 8.0, 20.0))),
        NO_EFFECT: lambda: results(times=((1, 40.0, 60.0), (32, 30.0, 20.0))),
        NOT_TESTABLE: lambda: results(times=((1, 100.0, 60.0), (2, 60.0, 30.0))),
    },
    "C24": {
        "supported": results,
        "reversed": lambda: results(times=((1, 100.0, 60.0), (32, 10.0, 20.0))),
        NOT_TESTABLE: lambda: results(times=((1, 100.0, 60.0), (2, 60.0, 30.0))),
    },
    "C25": {
        "supported": lambda: rule_rates(0.0, -0.7),
        "reversed": lambda: rule_rates(0.0, 0.5),
        NO_EFFECT: lambda: rule_rates(0.0, 0.0),
        "undecided": lambda: rule_rates(0.0, -0.7, UNCLEAR),
        NOT_TESTABLE: lambda: rule_rates(0.0, -0.7).assign(interior=False),
    },
    "C26": {
        "supported": lambda: encoders(0.4),
        "reversed": lambda: encoders(-0.4),
        NO_EFFECT: lambda: encoders(0.0),
        "undecided": lambda: encoders(0.4, UNCLEAR),
        NOT_TESTABLE: results,
    },
}
