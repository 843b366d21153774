"""scala_lab's own training loop, one step at a time."""

from __future__ import annotations

from typing import Any

from scala_lab import RunSpec


class OurSide:
    """A run of which each step is called from outside; other step functions can take their turn on its model.

    Args:
        spec: Resolved or not.
    """

    def __init__(self, spec: RunSpec) -> None:
        import torch

        from scala_lab.training.distributed import World
        from scala_lab.training.preparation import prepare
        from scala_lab.training.trainer import Training

        self.spec = spec = spec.resolved()
        torch.set_num_threads(spec.machine.threads or 1)
        self.training = Training(spec, prepare(spec), World(0, 1, torch.device("cpu")))
        self.training.model.train()

    def step(self, number: int, function: Any = None) -> None:
        """Train one optimizer step on the rows of that number, with another step function if one is given."""
        own = self.training.step_function
        try:
            self.training.step_function = function or own
            self.training.accumulate(number)
            self.training.update(number)
        finally:
            self.training.step_function = own
