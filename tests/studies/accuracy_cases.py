"""Made-up runs for the claims on accuracy, batch sizes and noise.

Scores scatter by 0.2 points where a claim must be decidable and by 6 where it must not be. The scatter of each method
has mean 0, so that the mean difference of two methods is the wanted effect and luck decides nothing.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd

TASKS, SEEDS = ("a", "b", "c", "d"), (0, 1, 2)
CLEAR, UNCLEAR = 0.2, 6.0


def scatter(count, stream):
    """Numbers of mean 0 and deviation 1."""
    values = np.random.default_rng(stream).normal(size=count)
    return (values - values.mean()) / values.std()


def frame(rows, tasks=TASKS, seeds=SEEDS, noise=CLEAR, clock_noise=0.02):
    """One run per row, task and seed.

    Args:
        rows: Labels and finding of each: `score` is what it adds to the task's level, other numbers are means.
        tasks: Each with a level of its own.
        seeds: Paired.
        noise: Scatter of scores, in points.
        clock_noise: Relative scatter of seconds.
    """
    made = []
    pairs = list(itertools.product(range(len(tasks)), seeds))
    for stream, row in enumerate(rows):
        luck, clock_luck = scatter(len(pairs), [stream, 0]), scatter(len(pairs), [stream, 1])
        for number, (index, seed) in enumerate(pairs):
            run = {"task": tasks[index], "seed": seed, **row}
            run["score"] = 80 + 3 * index + row.get("score", 0.0) + noise * luck[number]
            if "train_seconds" in row:
                run["train_seconds"] = row["train_seconds"] * math.exp(clock_noise * clock_luck[number])
            made.append(run)
    return pd.DataFrame(made)


def methods(noise=CLEAR, **scores):
    """Methods by name and what each adds to the score."""
    return frame([{"method": name, "score": score} for name, score in scores.items()], noise=noise)


def heat(exponent, seeds=(0, 1, 2, 3), noise=0.05):
    """Scores that fall with the square of log rate from a best rate that grows with B to that exponent."""
    rows = []
    cells = list(itertools.product((256, 512, 1024, 2048), 1e-3 * 2.0 ** np.arange(-2, 6), seeds))
    for (batch_size, rate, seed), luck in zip(cells, scatter(len(cells), 0), strict=True):
        best = 1e-3 * (batch_size / 256) ** exponent
        score = 80 - math.log(rate / best) ** 2 + noise * luck
        rows.append({"batch_size": batch_size, "rate": rate, "seed": seed, "score": score})
    return pd.DataFrame(rows)


def gaps(at_first, per_doubling, noise=CLEAR):
    """Accuracy over batch sizes: a first gap to the small one and what each doubling adds."""
    large = [
        {"batch_size": 2 ** (8 + doublings), "score": -at_first - per_doubling * doublings} for doublings in range(4)
    ]
    return frame([{"batch_size": 32, "score": 0.0}, *large], tasks=("a",), noise=noise)


def speed(accuracy, factor, workers=32, noise=CLEAR):
    rows = [
        {"method": "baseline", "score": 0.0, "train_seconds": 100.0 * factor, "workers": workers},
        {"method": "ScaLA", "score": accuracy, "train_seconds": 100.0, "workers": workers},
    ]
    return frame(rows, noise=noise)


def ablation(cost, without_groups, without_noise, noise=CLEAR):
    rows = [
        {"method": "ScaLA", "forward_passes": 20.0, "train_seconds": 10.0},
        {"method": "without delay", "score": 0.1, "forward_passes": 20 * cost, "train_seconds": 10 * cost},
        {"method": "without group-wise rates", "score": without_groups, "forward_passes": 20.0, "train_seconds": 10.0},
        {"method": "without PGA-1", "score": without_noise, "forward_passes": 18.0, "train_seconds": 9.0},
    ]
    return frame(rows, noise=noise)


def freelb(accuracy, cost, noise=CLEAR):
    rows = [
        {"method": "ScaLA", "forward_passes": 20.0, "train_seconds": 10.0},
        {"method": "FreeLB", "score": accuracy, "forward_passes": 20 * cost, "train_seconds": 10 * cost},
    ]
    return frame(rows, noise=noise)


def ascents(gain, power=1.0, noise=CLEAR):
    """Cost grows with that power of the number of ascent steps; accuracy gains so much with more than one."""
    rows = [
        {
            "pga_steps": steps,
            "score": gain if steps > 1 else 0.0,
            "forward_passes": 18 + 2.0 * steps**power,
            "train_seconds": 9 + steps**power,
        }
        for steps in (1, 2, 3, 5)
    ]
    return frame(rows, tasks=("a",), seeds=range(6), noise=noise)


def sizes(per_doubling, lamb, scala, noise=CLEAR):
    rows = [
        {"method": method, "batch_size": 2**power, "score": above - per_doubling * (power - 5)}
        for method, above in (("baseline", 0.0), ("LAMB", lamb), ("ScaLA", scala))
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


def draws(noise_alone, draws_alone, divergences, noise=CLEAR):
    """Accuracy above LAMB of noise with one draw and of two draws; divergences of ScaLA, two draws, one draw."""
    scala, two, one = divergences
    rows = [
        {"method": "LAMB", "divergence": math.nan},
        {"method": "ScaLA", "score": 1.0, "divergence": scala},
        {"method": "two draws, no noise", "score": draws_alone, "divergence": two},
        {"method": "noise, one draw", "score": noise_alone, "divergence": one},
    ]
    return frame(rows, noise=noise)


CASES = {
    "C3": {
        "reproduced": lambda: heat(0.5),
        "contradicted": lambda: heat(1.0),
        "inconclusive": lambda: heat(0.5, noise=8.0),
    },
    "C4": {
        "reproduced": lambda: gaps(0.5, 0.5),
        "contradicted": lambda: gaps(2.0, -0.5),
        "inconclusive": lambda: gaps(0.5, 0.0, UNCLEAR),
    },
    "C8": {
        "reproduced": lambda: ascents(-0.3),
        "contradicted": lambda: ascents(2.0),
        "inconclusive": lambda: ascents(0.0, noise=UNCLEAR),
    },
    "C9": {
        "reproduced": lambda: speed(0.0, 5.0),
        "contradicted": lambda: speed(-2.0, 5.0),
        "inconclusive": lambda: speed(0.0, 1.5, workers=1),
    },
    "C10": {
        "reproduced": lambda: methods(ScaLA=1.0, LAMB=0.2, baseline=0.0),
        "contradicted": lambda: methods(ScaLA=0.0, LAMB=1.0, baseline=0.0),
        "inconclusive": lambda: methods(UNCLEAR, ScaLA=0.5, LAMB=0.2, baseline=0.0),
    },
    "C11": {
        "reproduced": lambda: ablation(1.7, -0.4, -0.8),
        "contradicted": lambda: ablation(1.7, -0.4, 0.8),
        "inconclusive": lambda: ablation(1.7, -0.2, -0.8, UNCLEAR),
    },
    "C12": {
        "reproduced": lambda: freelb(0.1, 2.7),
        "contradicted": lambda: freelb(0.1, 1.2),
        "inconclusive": lambda: freelb(0.1, 2.7, UNCLEAR),
    },
    "C13": {
        "reproduced": lambda: methods(**{"ScaLA (LP)": 1.5, "ScaLA (GT)": 1.0, "Gaussian noise": 0.5, "baseline": 0.0}),
        "contradicted": lambda: methods(
            **{"ScaLA (LP)": 0.0, "ScaLA (GT)": 0.5, "Gaussian noise": 1.0, "baseline": 1.5}
        ),
        "inconclusive": lambda: methods(
            UNCLEAR, **{"ScaLA (LP)": 0.0, "ScaLA (GT)": 0.0, "Gaussian noise": 0.0, "baseline": 0.0}
        ),
    },
    "C15": {
        "reproduced": lambda: methods(**{"ScaLA": 1.2, "baseline, longer": 0.0}),
        "contradicted": lambda: methods(**{"ScaLA": 0.0, "baseline, longer": 1.2}),
        "inconclusive": lambda: methods(UNCLEAR, **{"ScaLA": 0.2, "baseline, longer": 0.0}),
    },
    "C16": {
        "reproduced": lambda: sizes(0.4, 0.3, 0.9),
        "contradicted": lambda: sizes(0.4, 0.3, -0.5),
        "inconclusive": lambda: sizes(0.0, 0.0, 0.0, UNCLEAR),
    },
    "C17": {
        "reproduced": lambda: delays(0.1, 1.0, 0.3),
        "contradicted": lambda: delays(2.0, 1.0, 0.3),
        "inconclusive": lambda: delays(0.1, 0.3, 0.1, UNCLEAR),
    },
    "C18": {
        "reproduced": lambda: methods(**{"ScaLA, rule": 0.1, "ScaLA, tuned": 0.0}),
        "contradicted": lambda: methods(**{"ScaLA, rule": -2.0, "ScaLA, tuned": 0.0}),
        "inconclusive": lambda: methods(UNCLEAR, **{"ScaLA, rule": 0.0, "ScaLA, tuned": 0.0}),
    },
    "C21": {
        "reproduced": lambda: draws(0.0, 1.0, (6.3e-2, 6.2e-2, 2e-9)),
        "contradicted": lambda: draws(1.0, 0.0, (6.3e-2, 1e-6, 6.2e-2)),
        "inconclusive": lambda: draws(0.0, 1.0, (6.3e-2, 6.2e-2, 2e-9), UNCLEAR),
    },
}
