"""Seconds of each phase of a step, for several methods in one process, in turns.

Methods take turns within every step and share its rows, so that what drifts on the machine meets all of them alike,
and their steps can be compared in pairs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from scala_lab.clock import PHASES
from scala_lab.config import RunSpec

STEP = "step"
"""Stands beside the phases: the whole step."""


def phase_seconds(specs: Mapping[str, RunSpec], steps: int, warmup: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by method and phase, one value per step.

    Args:
        specs: What is timed, by name; one worker each, on the same task and batch size.
        steps: Steps that are kept.
        warmup: Steps before them that are not.

    Returns:
        For each method every phase that it has, and `step` for the whole.
    """
    from scala_lab.training.distributed import join_world
    from scala_lab.training.preparation import prepare
    from scala_lab.training.trainer import Training

    trainings = {}
    for name, spec in specs.items():
        spec = spec.override(max_steps=warmup + steps).resolved()
        training = Training(spec, prepare(spec), join_world(spec))
        training.model.train()
        trainings[name] = training
    found: dict[str, dict[str, list[float]]] = {name: {} for name in specs}
    for step in range(warmup + steps):
        for name, training in trainings.items():
            before, started = training.clock.totals(), time.perf_counter()
            training.accumulate(step)
            with training.clock.phase("optimizer"):
                training.update(step)
            after = training.clock.totals()
            seconds = {phase: after[phase] - before.get(phase, 0.0) for phase in PHASES if phase in after}
            if step >= warmup:
                for phase, value in {**seconds, STEP: time.perf_counter() - started}.items():
                    found[name].setdefault(phase, []).append(value)
    return found
