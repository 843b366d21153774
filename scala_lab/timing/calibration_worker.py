"""One worker of a calibration: `python -m scala_lab.timing.calibration_worker JOB`.

Workers time what a model of time is made of, each piece by itself: made-up batches of several shapes through the
trainer's own step, updates, and all-reduces of several sizes. No step of a real run is among them. What one worker
takes alone is measured while the others wait, in turns with what all take at once, so that their ratio does not depend
on what the machine does over a minute.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from scala_lab.batches import BatchPlan
from scala_lab.config import RunSpec
from scala_lab.data.tokens import TokenSplit
from scala_lab.files import write_json
from scala_lab.methods.base import build_step
from scala_lab.optim.build import build_optimizer
from scala_lab.timing.model import planned_load
from scala_lab.timing.timed_worker import Apart
from scala_lab.timing.undisturbed import clocked, undisturbed
from scala_lab.training.distributed import World, join_world
from scala_lab.training.preparation import prepare
from scala_lab.training.trainer import Training
from scala_lab.training.worker import work

Shape = tuple[int, int, int]
"""Rows, tokens of the longest and most rows at once."""
SHAPES = (*((rows, 12, rows) for rows in (2, 8, 32, 64)), (64, 12, 16), (32, 24, 32), (16, 40, 16), (32, 40, 32))
"""Small and large ones, one that is cut, and longer ones."""
CROWD = ((8, 12, 8), (32, 12, 32), (16, 40, 16))
"""Those of them that all workers run at once, to see how much they slow one another down."""
WAKE = CROWD[0]
"""Comes before every update and message, which a run meets with its caches full of something else."""
MESSAGES = (1 << 10, 1 << 16, 1 << 20, 1 << 21)
"""Bytes of the messages beside the gradient itself."""
LEAST, MOST = 3, 15
"""How often a piece is measured, at least and at most."""


def measure(spec: RunSpec, pieces: list[str], seconds: float) -> dict[str, Any]:
    """What the first worker found; each piece is a list of points.

    Args:
        spec: Model, threads and number of workers.
        pieces: `computing` of one worker (by kind of step: load and seconds); `crowd` of all at once (plain steps:
            seconds of the slowest as `seconds`, of the first by itself as `alone`); `updates` (by optimizer, likewise);
            `messages` (bytes and seconds of an all-reduce).
        seconds: About how long each is measured for.
    """
    spec = spec.resolved()
    world = join_world(spec)
    try:
        trial = _Trial(spec, world, seconds)
        ways: dict[str, Callable[[], Any]] = {
            "computing": lambda: {kind: trial.computing(kind, SHAPES) for kind in ("plain", "noise")},
            "crowd": lambda: trial.computing("plain", CROWD, together=True),
            "updates": lambda: {name: trial.update(name) for name in ("adamw", "lamb")},
            "messages": trial.messages,
        }
        found = {piece: ways[piece]() for piece in pieces}
        return {**found, "gradient_bytes": trial.training.gradient.flat.nbytes}
    finally:
        world.leave()


class _Trial:
    """A trainer that is given made-up batches."""

    def __init__(self, spec: RunSpec, world: World, seconds: float) -> None:
        self.world, self.seconds = world, seconds
        self.training = Training(spec, prepare(spec), world)
        self.training.model.train()
        self.alone = Apart(0, 1, world.device)
        self.training.world = self.alone  # each runs the whole made-up batch
        like = self.training.data.train
        self.batches = {shape: (_plan(shape), _made_up(like, *shape[:2])) for shape in SHAPES}
        noisy = RunSpec.of(method="scala", delay=0.0).resolved().recipe
        plain = RunSpec.of(method="plain").resolved().recipe
        self.steps = {
            name: build_step(recipe.method, recipe.options) for name, recipe in (("plain", plain), ("noise", noisy))
        }

    def computing(self, kind: str, shapes: Sequence[Shape], together: bool = False) -> list[dict[str, float]]:
        """Load and seconds of a step's computing for each shape; shapes take turns, as batches of a run do."""
        self.training.step_function = self.steps[kind]
        timed = self._repeat([partial(self._accumulate, shape) for shape in shapes], together)
        return [{**self._load(shape), **seconds} for shape, seconds in zip(shapes, timed, strict=True)]

    def update(self, optimizer: str) -> dict[str, float]:
        """Seconds of an update."""
        optim = RunSpec.of(optimizer=optimizer).resolved().optim
        self.training.spec = replace(self.training.spec, optim=optim)
        self.training.optimizer = build_optimizer(self.training.model, optim, 1e-6)
        return self._repeat([lambda: self.training.update(0)], together=True, wake=True)[0]

    def messages(self) -> list[dict[str, float]]:
        """Bytes and seconds of all-reduces, each right after a batch; the worker that comes last waits for nobody."""
        sizes = (*MESSAGES, self.training.gradient.flat.nbytes)
        buffers = [torch.zeros(size // 4, device=self.world.device) for size in sizes]
        acts = [partial(self.world.all_reduce, buffer) for buffer in buffers]
        everyone = self.world.gather(self._rounds(lambda: [self._once(act, wake=True)[0] for act in acts]))
        middles = _middles(everyone, min)
        return [{"bytes": float(size), "seconds": middle} for size, middle in zip(sizes, middles, strict=False)]

    def _repeat(self, acts: list[Callable[[], Any]], together: bool, wake: bool = False) -> list[dict[str, float]]:
        """Seconds of each act, taken in turns.

        Returns:
            On the first worker `seconds`: its own while the others wait; if `together`, those of the slowest when all
            begin at once, and its own as `alone`. Nothing on the others.
        """

        def turn() -> list[tuple[float, float]]:
            pairs = []
            for act in acts:
                alone = undisturbed(partial(self._once, act, wake), self.alone) if self.world.leads else 0.0
                self._meet()
                crowd = undisturbed(partial(self._once, act, wake, meet=True), self.world) if together else 0.0
                self._meet()
                pairs.append((alone, crowd))
            return pairs

        rounds = self._rounds(turn)
        own = [[alone for alone, _ in pairs] for pairs in rounds]
        everyone = self.world.gather([[crowd for _, crowd in pairs] for pairs in rounds])
        if everyone is None:
            return [{} for _ in acts]
        alone = _middles([own], max)
        if not together:
            return [{"seconds": seconds} for seconds in alone]
        return [
            {"alone": seconds, "seconds": slowest}
            for seconds, slowest in zip(alone, _middles(everyone, max), strict=True)
        ]

    def _rounds(self, turn: Callable[[], list[Any]]) -> list[list[Any]]:
        """What some turns gave, as many as fit into the time, after a first one that does not count."""
        began = time.perf_counter()
        turn()
        fitting = round(self.seconds / (time.perf_counter() - began))
        number = torch.tensor([min(MOST, max(LEAST, fitting))], device=self.world.device)
        self.world.broadcast([number])
        return [turn() for _ in range(int(number))]

    def _accumulate(self, shape: Shape) -> None:
        """Compute a made-up batch."""
        self.training.plan, split = self.batches[shape]
        self.training.data = replace(self.training.data, train=split)
        self.training.accumulate(0)

    def _load(self, shape: Shape) -> dict[str, float]:
        plan, _ = self.batches[shape]
        return vars(planned_load(plan, plan.global_batch(0)))

    def _once(self, act: Callable[[], Any], wake: bool = False, meet: bool = False) -> tuple[float, float]:
        """Seconds of something, after a batch if `wake`, all beginning at once if they `meet`; and the share lost."""
        if wake:
            self._accumulate(WAKE)
        if meet:
            self._meet()
        seconds, idle = clocked(act, self.world)
        return seconds, idle / seconds

    def _meet(self) -> None:
        if self.world.size > 1:
            dist.barrier()


def _middles(everyone: list[list[list[float]]] | None, pick: Callable[[tuple[float, ...]], float]) -> list[float]:
    """Medians over rounds of what each act took, of each round the worker that is picked; empty where nobody says."""
    if everyone is None:
        return []
    picked = [[pick(times) for times in zip(*workers, strict=True)] for workers in zip(*everyone, strict=True)]
    return [statistics.median(times) for times in zip(*picked, strict=True)]


def _plan(shape: Shape) -> BatchPlan:
    """A plan that cuts where a micro-batch is full, and nowhere else."""
    rows, longest, most = shape
    return BatchPlan(_lengths(rows, longest), rows, most, part_cost=float(rows * longest))


def _lengths(rows: int, longest: int) -> np.ndarray:
    """Of some rows, the shorter ones a third shorter: like those of a run, which are hardly ever without padding."""
    return longest - (np.arange(rows) * 5 // rows) * longest // 15


def _made_up(like: TokenSplit, rows: int, longest: int) -> TokenSplit:
    """Rows out of tokens that the task has."""
    offsets = np.concatenate([[0], np.cumsum(_lengths(rows, longest))])
    ids = np.resize(like.ids, offsets[-1])
    types = None if like.type_ids is None else np.zeros_like(ids)
    return TokenSplit(ids, offsets, types, np.resize(like.labels, rows))


def _measure(values: dict[str, Any]) -> None:
    spec = RunSpec.from_dict(values["spec"])
    found = measure(spec, values["pieces"], values["seconds"])
    if os.environ["RANK"] == "0":
        write_json(Path(values["found"]), found)


if __name__ == "__main__":
    work(sys.argv[1], _measure)
