"""One worker of a calibration: `python -m scala_lab.scaling.calibration_worker JOB`.

Workers time what a model of time is made of, each piece by itself: made-up batches of several shapes through the
trainer's own step, updates, and all-reduces of several sizes. No step of a real run is among them. What one worker
takes alone is measured while the others wait.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from scala_lab.batches import BatchPlan
from scala_lab.files import write_json
from scala_lab.methods.step import build_step
from scala_lab.optim.build import build_optimizer
from scala_lab.scaling.step_model import planned_load
from scala_lab.scaling.timed_worker import Apart
from scala_lab.spec import RunSpec
from scala_lab.tasks.tokens import TokenSplit
from scala_lab.training.loop import Training
from scala_lab.training.preparation import prepare
from scala_lab.training.worker import work
from scala_lab.training.world import World, join_world

SHAPES = ((2, 12, 2), (8, 12, 8), (32, 12, 32), (64, 12, 64), (64, 12, 16), (16, 40, 16), (48, 40, 48))
"""Rows, tokens of each and most rows at once."""
CROWD = ((32, 12, 32), (16, 40, 16))
"""Those that all workers run at once, to see how much they slow one another down."""
MESSAGES = (1 << 10, 1 << 16, 1 << 20, 1 << 21)
"""Bytes of the messages beside the gradient itself."""
TIMES = 3
"""Of which the middle one counts."""


def measure(spec: RunSpec, pieces: list[str]) -> dict[str, Any]:
    """What the first worker found; each piece is a list of points.

    Args:
        spec: Model, threads and number of workers.
        pieces: Of one worker `computing` (by kind of step: load and seconds) and `updates` (seconds by optimizer); of
            all at once, on the slowest, `crowd` (as `computing`, plain steps) and `messages` (bytes and seconds of an
            all-reduce).
    """
    spec = spec.resolved()
    world = join_world(spec)
    try:
        trial = _Trial(spec, world)
        alone: dict[str, Callable[[], Any]] = {
            "computing": lambda: {kind: trial.computing(kind, SHAPES) for kind in ("plain", "noise")},
            "updates": lambda: {name: trial.update(name) for name in ("adamw", "lamb")},
        }
        together = {"crowd": lambda: trial.computing("plain", CROWD, together=True), "messages": trial.messages}
        found = {piece: alone[piece]() for piece in pieces if piece in alone and world.leads}
        if world.size > 1:
            dist.barrier()
        found |= {piece: together[piece]() for piece in pieces if piece in together}
        return {**found, "gradient_bytes": trial.training.gradient.flat.nbytes}
    finally:
        world.leave()


class _Trial:
    """A trainer that is given made-up batches."""

    def __init__(self, spec: RunSpec, world: World) -> None:
        self.spec, self.world = spec, world
        self.training = Training(spec, prepare(spec), world)
        self.training.model.train()
        self.training.world = Apart(0, 1, world.device)  # each runs the whole made-up batch
        noisy = RunSpec.of(method="scala", delay=0.0).resolved().recipe
        plain = RunSpec.of(method="plain").resolved().recipe
        self.steps = {
            name: build_step(recipe.method, recipe.options) for name, recipe in (("plain", plain), ("noise", noisy))
        }

    def computing(
        self, kind: str, shapes: tuple[tuple[int, int, int], ...], together: bool = False
    ) -> list[dict[str, float]]:
        """Load and seconds of a step's computing for each shape; shapes take turns, as batches of a run do."""
        training = self.training
        training.step_function = self.steps[kind]
        seconds: list[list[float]] = [[] for _ in shapes]
        loads = []
        for _ in range(1 + TIMES):
            for (rows, length, most), times in zip(shapes, seconds, strict=True):
                split = _made_up(training.data.train, rows, length)
                training.data = replace(training.data, train=split)
                training.plan = BatchPlan(split.lengths, rows, most)
                loads.append(vars(planned_load(training.plan, training.plan.global_batch(0))))
                times.append(self._once(lambda: training.accumulate(0), together))
        middles = [self._middle(times, together) for times in seconds]
        return [{**load, "seconds": middle} for load, middle in zip(loads, middles, strict=False)]

    def update(self, optimizer: str) -> float:
        """Seconds of an update."""
        optim = RunSpec.of(optimizer=optimizer).resolved().optim
        self.training.spec = replace(self.training.spec, optim=optim)
        self.training.optimizer = build_optimizer(self.training.model, optim, 1e-6)
        return self._middle([self._once(lambda: self.training.update(0)) for _ in range(1 + TIMES)])

    def messages(self) -> list[dict[str, float]]:
        """Bytes and seconds of all-reduces."""
        points = []
        for size in (*MESSAGES, self.training.gradient.flat.nbytes):
            send = partial(self.world.sum, torch.zeros(size // 4, device=self.world.device))
            times = [self._once(send, together=True) for _ in range(1 + TIMES)]
            points.append({"bytes": float(size), "seconds": self._middle(times, together=True)})
        return points

    def _once(self, act: Callable[[], Any], together: bool = False) -> float:
        """Seconds of something, all workers beginning it at once if they do it together."""
        if together and self.world.size > 1:
            dist.barrier()
        _finish(self.world)
        started = time.perf_counter()
        act()
        _finish(self.world)
        return time.perf_counter() - started

    def _middle(self, seconds: list[float], together: bool = False) -> float:
        """The median of all but the first; of all workers, the slowest each time."""
        everyone = self.world.gather(seconds[1:]) if together else None
        return statistics.median(max(times) for times in zip(*(everyone or [seconds[1:]]), strict=True))


def _made_up(like: TokenSplit, rows: int, length: int) -> TokenSplit:
    """Rows of equal length out of tokens that the task has."""
    ids = np.resize(like.ids, rows * length)
    types = None if like.type_ids is None else np.zeros_like(ids)
    return TokenSplit(ids, np.arange(rows + 1) * length, types, np.resize(like.labels, rows))


def _finish(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def _measure(values: dict[str, Any]) -> None:
    spec = RunSpec.from_dict(values["spec"])
    found = measure(spec, values["pieces"])
    if os.environ["RANK"] == "0":
        write_json(Path(values["found"]), found)


if __name__ == "__main__":
    sys.exit(work(sys.argv[1], _measure))
