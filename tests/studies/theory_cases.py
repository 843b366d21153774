"""Made-up runs of the convergence study."""

from __future__ import annotations

import numpy as np
import pandas as pd

ALPHA, GAP, GRADIENT_BOUND = 4.4, 20.0, 3.2


def outer(power=-0.5, added=0.5, kappa_power=0.0, wide=3.0, spread=0.02, replicas=8):
    """Values that fall like T^power and grow by `added` * 4 eps alpha and like kappa^kappa_power.

    Args:
        power: Exponent of T.
        added: What eps adds, over the printed term.
        kappa_power: Exponent of kappa.
        wide: Value over bound where U/L = 32.
        spread: Deviation of the logarithms between replicas.
        replicas: How many.
    """
    shared = np.random.default_rng(0).normal(size=(replicas, 3))  # the same noise under every setting, as in the study
    rows = []
    for kappa, epsilon, clip in [
        (1.0, 0.0, 2.0),
        (4.0, 0.0, 2.0),
        (16.0, 0.0, 2.0),
        (4.0, 0.01, 2.0),
        (4.0, 0.1, 2.0),
        (1.0, 0.0, 32.0),
    ]:
        for replica in range(replicas):
            for place, steps in enumerate((64, 256, 1024)):
                luck = np.exp(spread * shared[replica, place])
                bound = 4 * epsilon * ALPHA + 2 * kappa * GAP * GRADIENT_BOUND / np.sqrt(steps)
                value = 10 * (steps / 64.0) ** power * kappa**kappa_power * luck
                value += added * 4 * epsilon * ALPHA
                if clip > 2:
                    value = wide * bound * luck
                rows.append(
                    {
                        "kappa": kappa,
                        "epsilon": epsilon,
                        "ascent_steps": 0,
                        "clip": clip,
                        "batch": "growing",
                        "steps": steps,
                        "replica": replica,
                        "value": value,
                        "bound": bound,
                        "gap": GAP,
                        "gradient_bound": GRADIENT_BOUND,
                        "largest_alpha": ALPHA,
                    }
                )
    return pd.DataFrame(rows)


def inner(worst=0.5, bend=0.9, spread=0.05, problems=6):
    """Factors of `worst` * (S/C - 1), bends around a value."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "kind": kind,
                "ratio": ratio,
                "problem": problem,
                "worst_factor": worst * (ratio - 1),
                "bend": bend + spread * rng.normal(),
            }
            for kind in ("box", "sparse")
            for ratio in (1.2, 1.9, 4.0)
            for problem in range(problems)
        ]
    )


CASES = {
    "C19": {
        "supported": lambda: outer(wide=0.5),
        "reversed": outer,
        "undecided": lambda: outer(wide=1.0, spread=0.5),
    },
    "C20": {
        "supported": inner,
        "reversed": lambda: inner(worst=1.4),
        "undecided": lambda: inner(bend=0.5, spread=0.3),
    },
    "C22": {
        "supported": outer,
        "reversed": lambda: outer(wide=0.3),
        "undecided": lambda: outer(wide=1.0, spread=0.5),
    },
    "C27": {
        "supported": outer,
        "reversed": lambda: outer(power=-0.2),
        "undecided": lambda: outer(power=-0.45, spread=0.5),
    },
}
