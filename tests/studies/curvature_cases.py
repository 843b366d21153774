"""Made-up sharpness of runs."""

from __future__ import annotations

import numpy as np
import pandas as pd


def sharpness(large=2.6, deviation=3.9, scala=0.4, spread=0.05, seeds=3, converged=True):
    """Eigenvalues around 1 at the small batch.

    Args:
        large: Large batch over small batch.
        deviation: The same of the deviation.
        scala: ScaLA over small batch.
        spread: Deviation of the logarithms between seeds.
        seeds: Pairs.
        converged: Whether the eigenvalues are ones.
    """
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "task": "mini-mnli",
                "method": method,
                "seed": seed,
                "eigenvalue": factor * np.exp(spread * rng.normal()),
                "deviation": 0.1 * wobble * np.exp(spread * rng.normal()),
                "converged": converged,
            }
            for method, factor, wobble in [
                ("small batch", 1.0, 1.0),
                ("large batch", large, deviation),
                ("ScaLA", scala, 0.5),
            ]
            for seed in range(seeds)
        ]
    )


CASES = {
    "C5": {
        "reproduced": sharpness,
        "contradicted": lambda: sharpness(large=0.5),
        "inconclusive": lambda: sharpness(large=1.2, spread=0.6),
    },
    "C6": {
        "reproduced": sharpness,
        "contradicted": lambda: sharpness(scala=4.0),
        "inconclusive": lambda: sharpness(scala=0.9, spread=0.6),
    },
}
