"""A small model of the time of a step, and its fit to measured or reported times.

    t(task, B, P) = a_task * B / P + overhead + (P > 1) * exchange * ring(P) + optimizer + noise * a_task * B / P

a_task is the time of one sample forward and backward, `overhead` what a step costs beside its samples, `exchange` an
all-reduce among many workers, ring(P) = (P - 1) / P its share among P (a ring sends 2 (P - 1) / P of the gradient
over every link), `optimizer` what LAMB takes beyond AdamW, `noise` what steps with noise add, as a mean over the run.
All are at least 0. The fit is of relative errors, by nonnegative least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

SHARED = ("overhead", "exchange", "optimizer", "noise")


@dataclass(frozen=True)
class Observation:
    """The time of a step somewhere.

    Attributes:
        task: Decides how long a sample takes.
        workers: P.
        batch_size: B.
        lamb: Whether LAMB takes the step.
        noise: Whether the run has steps with noise.
        seconds: What was measured; nan for a prediction.
    """

    task: str
    workers: int
    batch_size: int
    lamb: bool = False
    noise: bool = False
    seconds: float = float("nan")


def ring(workers: int) -> float:
    """Share of a full exchange among so many workers; 0 for one."""
    return (workers - 1) / workers


@dataclass(frozen=True)
class StepModel:
    """Fitted constants, in seconds.

    Attributes:
        sample: a_task by task.
        overhead: Of a step.
        exchange: Of an all-reduce among many.
        optimizer: LAMB's, beyond AdamW's.
        noise: Share of a sample's time that noise adds, over the whole run.
    """

    sample: dict[str, float]
    overhead: float
    exchange: float
    optimizer: float
    noise: float

    def seconds(self, place: Observation) -> float:
        """Predicted time of a step."""
        samples = place.batch_size / place.workers
        return (
            self.sample[place.task] * samples * (1 + self.noise * place.noise)
            + self.overhead
            + self.exchange * ring(place.workers)
            + self.optimizer * place.lamb
        )


def fit_step_model(observations: Sequence[Observation]) -> StepModel:
    """The constants that explain the observations with the least squared relative error.

    The noise multiplies a sample's time, which makes it a product of two constants; it is found in a second fit, on
    what the first leaves of the observations with noise.
    """
    from scipy.optimize import nnls

    plain = [seen for seen in observations if not seen.noise]
    tasks = list(dict.fromkeys(seen.task for seen in plain))
    rows = [
        [seen.batch_size / seen.workers * (seen.task == task) for task in tasks]
        + [1.0, ring(seen.workers), float(seen.lamb)]
        for seen in plain
    ]
    seconds = np.array([seen.seconds for seen in plain])
    found, _ = nnls(np.array(rows) / seconds[:, None], np.ones(len(rows)))
    overhead, exchange, optimizer = (float(value) for value in found[len(tasks) :])
    sample = {task: float(value) for task, value in zip(tasks, found, strict=False)}
    model = StepModel(sample, overhead, exchange, optimizer, noise=0.0)
    shares, rests = [], []
    for seen in observations:
        if seen.noise:
            shares.append(model.sample[seen.task] * seen.batch_size / seen.workers / seen.seconds)
            rests.append(1 - model.seconds(seen) / seen.seconds)
    if not shares:
        return model
    noise, _ = nnls(np.array(shares)[:, None], np.array(rests))
    return replace(model, noise=float(noise[0]))
