"""Made-up runs for the claims on dropout and on ascent steps."""

from __future__ import annotations

from scala_lab.study.variants import LAMB, SCALA_OTHER, SCALA_TUNED
from studies.dropout_confound import DRAWS, NOISE, OTHER_DRAWS
from tests.studies.accuracy_cases import CLEAR, NO_EFFECT, NOT_TESTABLE, UNCLEAR, frame


def causes(draws=0.8, scala=0.0, noise=0.0, by_draws=1.0, by_noise=1e-3, scatter=CLEAR, **columns):
    """Runs with each cause alone.

    Args:
        draws: Two draws minus LAMB, in points.
        scala: ScaLA minus two draws.
        noise: Noise with one draw minus LAMB.
        by_draws: Divergence of two draws over ScaLA's.
        by_noise: Divergence of noise with one draw over ScaLA's.
        scatter: Deviation of scores.
        columns: What differs from well-trained runs.
    """
    arms = [
        (LAMB, 0.0, None),
        (DRAWS, draws, by_draws),
        (OTHER_DRAWS, draws, by_draws),
        (SCALA_TUNED, draws + scala, 1.0),
        (SCALA_OTHER, draws + scala, 1.0),
        (NOISE, noise, by_noise),
    ]
    rows = [{"method": arm.method, "score": score, "divergence": share, **columns} for arm, score, share in arms]
    return frame(rows, noise=scatter)


def ascents(gain=0.0, counts=(1, 2, 3), passes=lambda steps: 10.0 + 2 * steps, scatter=CLEAR, **columns):
    """Runs over T whose accuracy with T>1 differs by `gain`, and whose cost is a function of T."""
    rows = [
        {"method": SCALA_TUNED.method, "pga_steps": steps, "score": gain * (steps > 1), "forward_passes": passes(steps)}
        for steps in counts
    ]
    return frame([{**row, **columns} for row in rows], tasks=("a",), noise=scatter)


CASES = {
    "C8": {
        "supported": ascents,
        "reversed": lambda: ascents(gain=1.5),
        "undecided": lambda: ascents(gain=0.3, scatter=UNCLEAR),
        NOT_TESTABLE: lambda: ascents(interior=False),
    },
    "C21": {
        "supported": causes,
        "reversed": lambda: causes(scala=1.5),
        NO_EFFECT: lambda: causes(draws=0.0),
        "undecided": lambda: causes(scatter=UNCLEAR),
        NOT_TESTABLE: lambda: causes(train_loss=0.65),
    },
}
