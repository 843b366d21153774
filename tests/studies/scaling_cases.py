"""Made-up timings."""

from __future__ import annotations

import made_up
import numpy as np

from tests.studies.accuracy_cases import scatter

STEPS = 6


def timed(made, spread):
    """Scatter the logarithms of times."""
    for stream, name in enumerate(name for name in ("seconds", "without") if name in made):
        made[name] *= np.exp(spread * scatter(len(made), STEPS, stream))
    return made


def small(spread=0.02, **truth):
    return timed(made_up.small(STEPS, **truth), spread)


def large(spread=0.02, **truth):
    return timed(made_up.large(STEPS, **truth), spread)


def methods(spread=0.02, **truth):
    return timed(made_up.methods(STEPS, **truth), spread)


def phases(spread=0.02, **truth):
    return timed(made_up.phases(STEPS, **truth), spread)


CASES = {
    "C1": {
        "supported": small,
        "reversed": lambda: small(beyond=1.8),
        "undecided": lambda: small(1.5),
        "not testable here": lambda: small().query("workers <= 2"),
    },
    "C2": {
        "supported": large,
        "reversed": lambda: large(last=1.0),
        "undecided": lambda: large(2.0, gain=1.25, last=1.25),
        "not testable here": lambda: large().query("workers <= 4"),
    },
    "C7": {
        "supported": phases,
        "reversed": lambda: phases(backward=1.0),
        "undecided": lambda: phases(0.5),
        "not testable here": lambda: phases(plain_backward=1.0),
    },
    "C14": {
        "supported": methods,
        "reversed": lambda: methods(gain=1.1),
        "no effect of the claimed size": lambda: methods(saved=1.0),
        "not testable here": lambda: methods().query("workers <= 2"),
    },
}
