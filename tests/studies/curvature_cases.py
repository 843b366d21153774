"""Made-up sharpness of runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

TRAINED = {
    "status": "finished",
    "score": 90.0,
    "rows": 4000,
    "chance_score": 50.0,
    "train_loss": 0.1,
    "chance_loss": 0.69,
    "interior": True,
    "selection_split": "tuning",
    "score_split": "heldout",
    "steps": 100,
}
"""A run that passes all gates."""


def sharpness(large=2.6, deviation=3.9, scala=0.4, matched=1.0, spread=0.05, seeds=4, sets=3, **changes):
    """Eigenvalues around 1 at the small batch.

    Args:
        large: Large batch over small batch.
        deviation: The same of the deviation.
        scala: ScaLA over small batch.
        matched: All methods over small batch at equal loss.
        spread: Deviation of the logarithms between seeds.
        seeds: Pairs.
        sets: Sets of rows; one has no deviation.
        changes: Columns that differ from those of well-trained runs.
    """
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "task": "mini-mnli",
                "method": method,
                "seed": seed,
                "eigenvalue": factor * np.exp(spread * rng.normal()),
                "deviation": 0.1 * wobble * np.exp(spread * rng.normal()) if sets > 1 else np.nan,
                "matched": (1.0 if method == "small-batch baseline" else matched) * np.exp(spread * rng.normal()),
                **TRAINED,
                **changes,
            }
            for method, factor, wobble in [
                ("small-batch baseline", 1.0, 1.0),
                ("baseline", large, deviation),
                ("ScaLA, tuned t_s", scala, 0.5),
            ]
            for seed in range(seeds)
        ]
    )


CASES = {
    "C5": {
        "supported": sharpness,
        "reversed": lambda: sharpness(large=0.5),
        "no effect of the claimed size": lambda: sharpness(large=1.1, deviation=1.1),
        "undecided": lambda: sharpness(large=1.2, spread=0.6),
        "not testable here": lambda: sharpness(train_loss=0.65),
    },
    "C6": {
        "supported": sharpness,
        "reversed": lambda: sharpness(scala=4.0),
        "no effect of the claimed size": lambda: sharpness(scala=1.0, large=1.1),
        "undecided": lambda: sharpness(scala=0.9, spread=0.6),
        "not testable here": lambda: sharpness(interior=False),
    },
}
