"""Made-up runs for the claims on dropout and on ascent steps."""

from __future__ import annotations

import made_up

from tests.studies.accuracy_cases import CLEAR, NO_EFFECT, NOT_TESTABLE, UNCLEAR, frame


def causes(scatter=CLEAR, **truth):
    """Runs with each cause alone."""
    return frame(made_up.causes(**truth), scatter)


def ascents(scatter=CLEAR, **truth):
    """Runs over T."""
    return frame(made_up.ascents(**truth), scatter, tasks=("a",))


CASES = {
    "C8": {
        "supported": ascents,
        "reversed": lambda: ascents(gain=1.5),
        "undecided": lambda: ascents(UNCLEAR, gain=0.3),
        NOT_TESTABLE: lambda: ascents().assign(interior=False),
    },
    "C21": {
        "supported": causes,
        "reversed": lambda: causes(scala=1.5),
        NO_EFFECT: lambda: causes(draws=0.0),
        "undecided": lambda: causes(UNCLEAR),
        NOT_TESTABLE: lambda: causes().assign(train_loss=0.65),
    },
}
