"""Made-up sharpness of runs."""

from __future__ import annotations

import made_up
import numpy as np

from tests.studies.accuracy_cases import scatter


def sharpness(spread=0.05, seeds=4, sets=3, **truth):
    """Eigenvalues around 1 at the small batch, whose logarithms vary by `spread`; one set of rows has no deviation."""
    made = made_up.runs(made_up.sharpness(**truth), seeds)
    for stream, name in enumerate(("eigenvalue", "deviation", "matched") if seeds > 1 else ()):
        made[name] *= np.exp(spread * scatter(len(made), seeds, stream))
    return made if sets > 1 else made.assign(deviation=np.nan)


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
}
