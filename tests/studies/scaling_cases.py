"""Made-up timings."""

from __future__ import annotations

import numpy as np
import pandas as pd

WORKERS = (1, 2, 4, 8, 16, 32)


def lines(times, steps=6, spread=0.02):
    """Rows from {label: {workers: (seconds, seconds without communication)}}."""
    rng = np.random.default_rng(0)
    rows = []
    for label, by_workers in times.items():
        for workers, (seconds, without) in by_workers.items():
            for step in range(steps):
                luck = np.exp(spread * rng.normal())
                row = {"label": label, "workers": workers, "step": step}
                rows.append({**row, "seconds": seconds * luck, "without": without * luck})
    return pd.DataFrame(rows)


def falling(gain, until=32, workers=WORKERS):
    """Seconds that fall by `gain` per doubling up to some number of workers."""
    return {count: 100 / gain ** np.log2(min(count, until)) for count in workers}


def both(with_communication, without):
    return {count: (with_communication[count], without[count]) for count in with_communication}


def small(until=4, without_until=32, workers=WORKERS, spread=0.02, gain=1.8):
    return lines(
        {"small batch": both(falling(gain, until, workers), falling(gain, without_until, workers))}, spread=spread
    )


def large(gain=1.8, until=32, workers=WORKERS, spread=0.02):
    return lines({"large batch": both(falling(gain, until, workers), falling(gain, until, workers))}, spread=spread)


def methods(until=32, saved=1.8, saved_at_most=1.1, workers=WORKERS, spread=0.02):
    """The large-batch lines; ScaLA without delay takes `saved` times as long, on 32 workers `saved_at_most`."""
    base = falling(1.8, until, workers)
    late = {count: base[count] * (saved_at_most if count == 32 else saved) for count in base}
    times = {label: both(base, base) for label in ("baseline", "LAMB", "ScaLA", "ScaLA, early t_s")}
    return lines({**times, "ScaLA without delay": both(late, late)}, spread=spread)


def phases(inner=1.0, backward=2.0, optimizer=1.0, spread=0.02, steps=6, plain=2.0):
    """Phases in units of a forward pass: plain forward 1, optimizer 0.5.

    Args:
        plain: The plain backward.
        inner: The inner forward pass.
        backward: Backward with noise over plain.
        optimizer: Optimizer with noise over plain.
        spread: Deviation of the logarithms between steps.
        steps: How many.
    """
    rng = np.random.default_rng(0)
    seconds = {
        "plain": {"clean forward": 1.0, "backward": plain, "optimizer": 0.5},
        "PGA-1": {
            "clean forward": 1.0,
            "inner forward": inner,
            "inner backward": 1.0,
            "adversarial forward": 1.0,
            "backward": plain * backward,
            "optimizer": 0.5 * optimizer,
        },
    }
    rows = []
    for method, by_phase in seconds.items():
        for step in range(steps):
            luck = {phase: value * np.exp(spread * rng.normal()) for phase, value in by_phase.items()}
            luck["step"] = sum(luck.values())
            rows += [
                {"method": method, "step": step, "phase": phase, "seconds": value} for phase, value in luck.items()
            ]
    return pd.DataFrame(rows)


CASES = {
    "C1": {
        "supported": small,
        "reversed": lambda: small(until=32),
        "undecided": lambda: small(spread=1.5),
        "not testable here": lambda: small(workers=(1, 2)),
    },
    "C2": {
        "supported": large,
        "reversed": lambda: large(until=8),
        "undecided": lambda: large(gain=1.25, spread=2.0),
        "not testable here": lambda: large(workers=(1, 2, 4)),
    },
    "C7": {
        "supported": phases,
        "reversed": lambda: phases(backward=1.0),
        "undecided": lambda: phases(spread=0.5),
        "not testable here": lambda: phases(plain=1.0),
    },
    "C14": {
        "supported": methods,
        "reversed": lambda: methods(until=2),
        "no effect of the claimed size": lambda: methods(saved=1.1, saved_at_most=1.1),
        "not testable here": lambda: methods(workers=(1, 2)),
    },
}
