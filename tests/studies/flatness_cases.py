"""Made-up sharpness and accuracy of runs of all methods."""

from __future__ import annotations

import numpy as np
import pandas as pd

from studies.flatness import ARMS, EVIDENCE, MEASURES
from tests.studies.curvature_cases import TRAINED


def flatness(relation=-1.0, within=0.0, seeds=4, arms=ARMS, draw=0, **changes):
    """Runs whose rank of accuracy follows that of every measure of sharpness.

    Args:
        relation: Correlation of the methods' levels of sharpness and accuracy; -1 makes flatter ones more accurate.
        within: Deviation of both between the seeds of a method, whose levels are one unit apart.
        seeds: Of each method.
        arms: Methods.
        draw: Which random numbers.
        changes: Columns that differ from those of well-trained runs.
    """
    rng = np.random.default_rng(draw)
    levels = rng.permutation(len(arms)).astype(float)
    other = rng.permutation(len(arms))
    accuracy = levels * relation + other * np.sqrt(1 - relation**2)
    rows = []
    for arm, sharp, accurate in zip(arms, levels, accuracy, strict=True):
        for seed in range(seeds):
            value = np.exp(sharp + within * rng.normal())
            score = 80 + 0.5 * (accurate + within * rng.normal())
            evidence = dict.fromkeys(EVIDENCE, 1.0)
            own = {"task": "mini-mnli", "method": arm.method, "batch_size": 128, "seed": seed}
            rows.append({**own, **TRAINED, "score": score, **dict.fromkeys(MEASURES, value), **evidence, **changes})
    return pd.DataFrame(rows)


CASES = {
    "C28": {
        "supported": flatness,
        "reversed": lambda: flatness(relation=1.0),
        "no effect of the claimed size": lambda: flatness(relation=0.5, within=0.5, draw=1),
        "undecided": lambda: flatness(relation=-0.6, within=1.0),
        "not testable here": lambda: flatness(train_loss=0.65),
    },
}
