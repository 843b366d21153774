"""Made-up sharpness of runs, and its relation to their accuracy."""

from __future__ import annotations

import made_up
import numpy as np
import pandas as pd

from studies.flatness import LARGEST, MATCHED, MATCHED_ARMS
from tests.studies.accuracy_cases import scatter


def sharpness(spread=0.05, seeds=4, sets=3, **truth):
    """Eigenvalues around 1 at the small batch, whose logarithms vary by `spread`; one set of rows has no deviation."""
    made = made_up.runs(made_up.sharpness(**truth), seeds)
    for stream, name in enumerate(("eigenvalue", "deviation", "matched") if seeds > 1 else ()):
        made[name] *= np.exp(spread * scatter(len(made), seeds, stream))
    return made if sets > 1 else made.assign(deviation=np.nan)


def flatness(relation=-1.0, within=0.0, seeds=4, draw=0):
    """Runs of all methods at their ends and at the matched loss, sharpness and accuracy on levels of their methods.

    Args:
        relation: Correlation of the levels, which are one unit apart; -1 makes flatter methods more accurate.
        within: Deviation of both between the seeds of a method.
        seeds: Of each method.
        draw: Which random numbers.
    """
    made, rng = made_up.runs(made_up.flatness(relation), seeds), np.random.default_rng(draw)
    family = made.groupby("trunk").ngroup().to_numpy()
    levels, others = (rng.permutation(family.max() + 1) for _ in range(2))
    accuracy, luck = relation * levels + np.sqrt(1 - relation**2) * others, within * rng.normal(size=(2, len(made)))
    made[LARGEST] = np.exp(levels[family] + luck[0])
    made["score"] += 0.5 * (accuracy[family] + luck[1])
    matched = made[made["method"].isin([variant.method for variant in MATCHED_ARMS])].assign(kind=MATCHED)
    return pd.concat([made, matched], ignore_index=True)


CASES = {
    "C5": {
        "supported": sharpness,
        "reversed": lambda: sharpness(large=0.5),
        "no effect of the claimed size": lambda: sharpness(large=1.1, deviation=1.1),
        "undecided": lambda: sharpness(large=1.2, spread=0.6),
        "not testable here": lambda: sharpness().assign(train_loss=0.65),
    },
    "C6": {
        "supported": sharpness,
        "reversed": lambda: sharpness(scala=4.0),
        "no effect of the claimed size": lambda: sharpness(scala=1.0, large=1.1),
        "undecided": lambda: sharpness(large=1.2, scala=0.9, spread=0.6),
        "not testable here": lambda: sharpness().assign(interior=False),
    },
    "C28": {
        "supported": flatness,
        "reversed": lambda: flatness(relation=1.0),
        "no effect of the claimed size": lambda: flatness(relation=0.6, draw=3),
        "undecided": lambda: flatness(relation=-0.6, within=1.0),
        "not testable here": lambda: flatness().assign(train_loss=0.65),
    },
}
