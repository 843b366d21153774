"""Made-up runs of the convergence study."""

from __future__ import annotations

import made_up
import numpy as np


def outer(spread=0.02, replicas=8, **truth):
    """Squared gradients whose logarithms vary by `spread`, alike under every setting: they share their noise."""
    made = made_up.outer(replicas, **truth)
    shared = made.groupby(["replica", "steps"])
    luck = np.exp(spread * np.random.default_rng(0).normal(size=shared.ngroups)[shared.ngroup()])
    return made.assign(value=(made["value"] - made["added"]) * luck + made["added"])


def inner(spread=0.05, problems=6, **truth):
    """Steepness that varies by `spread`."""
    made = made_up.inner(problems, **truth)
    return made.assign(bend=made["bend"] + spread * np.random.default_rng(0).normal(size=len(made)))


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
