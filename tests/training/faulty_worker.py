"""A worker that fails on purpose: `python -m tests.training.faulty_worker`, with the words of `scala-lab`.

The variable FAULT says what happens to which worker: `RANK PLACE KIND`. It is read here alone, never by the package.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from scala_lab.cli import main
from scala_lab.errors import UserError
from scala_lab.machine import end_process
from scala_lab.training import distributed, trainer
from scala_lab.training.trainer import Training

STEP = 2
"""The 0-based step in which a fault during training happens."""


def fail(kind: str) -> None:
    """Raise, or end without reporting an error."""
    if kind == "raise":
        raise ValueError("broken\non purpose")
    if kind == "user":
        raise UserError("a sentence for the user")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        os._exit(3)


def before(place: Any, name: str, act: Any) -> None:
    """Have something happen before a function of the package."""
    original = getattr(place, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        act(*arguments)
        return original(*arguments, **options)

    setattr(place, name, replaced)


def poison_loss(training: Training, step: int) -> None:
    """Have the weights that this worker alone uses in its forward pass make the loss nan."""
    if step == STEP:
        with torch.no_grad():
            training.model.classifier.bias.fill_(torch.nan)


def poison_gradient(training: Training, step: int) -> None:
    """Have this worker's gradient be infinite, with a loss that is finite."""
    if step == STEP:
        training.model.classifier.weight.register_hook(lambda gradient: gradient * torch.inf)


def set_fault(rank: str, place: str, kind: str) -> None:
    """Prepare what FAULT says."""
    if os.environ.get("RANK") != rank:
        return
    if place == "join":
        before(distributed, "join_world", lambda *_: fail(kind))
    if place == "load":
        before(trainer, "load_model", lambda *_: fail(kind))
    if place == "step":
        acts = {"loss": poison_loss, "gradient": poison_gradient}
        before(Training, "accumulate", acts.get(kind, lambda _, step: fail(kind) if step == STEP else None))
    if place == "evaluation":
        before(trainer, "_predict", lambda *_: fail(kind))


if __name__ == "__main__":
    set_fault(*os.environ["FAULT"].split())
    end_process(main())
