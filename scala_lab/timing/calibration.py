"""The constants of this machine's time model, from about a minute of measuring its pieces.

The pieces are computing on synthetic batches of several shapes and updates, both through the trainer's own step, by one
worker alone and in turns by as many as fill the cores; and messages, between these and between two hosts of this
machine. No step of a run is timed, so that runs can tell whether the model is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.batches import BatchPlan
from scala_lab.config import RunSpec
from scala_lab.data.tokens import TokenSplit
from scala_lab.machine import usable_cores
from scala_lab.timing.harness import TimedTraining, barrier, time_call, time_in_workers, undisturbed
from scala_lab.timing.hosts import open_hosts, unsupported_reason
from scala_lab.timing.model import FREE, Compute, Link, StepModel, fit_compute, fit_link, planned_load

if TYPE_CHECKING:
    from scala_lab.training.distributed import World
    from scala_lab.training.run_dir import RunResult

WITHIN = "within a host"  # name of the link class between workers of one host; others go by their rate
PIECE_SECONDS = 5.0  # about how long each of the six pieces is measured for, and the link of each rate

Shape = tuple[int, int, int]  # rows, tokens of the longest row, and maximum rows of a micro-batch
SHAPES = (*((rows, 12, rows) for rows in (2, 8, 32, 64)), (64, 12, 16), (32, 24, 32), (16, 40, 16), (32, 40, 32))
"""Small and large ones, one that is cut, and longer ones."""
CROWD = ((8, 12, 8), (32, 12, 32), (16, 40, 16))
"""Those of them that all workers run at once, to see how much they slow one another down."""
CACHE_FILLER = CROWD[0]
"""Runs before every update and message, which a run meets with its caches full of something else."""
MESSAGES = (1 << 10, 1 << 16, 1 << 20, 1 << 21)  # bytes of the messages beside the gradient itself
MIN_ROUNDS, MAX_ROUNDS = 3, 15  # how often a piece is measured


@dataclass(frozen=True)
class Calibration:
    """The measured constants of a `StepModel`; `cores` workers fill a host, `links` are `WITHIN` and others by rate."""

    plain: Compute
    noise: Compute
    update: Mapping[str, float]
    gradient_bytes: float
    crowding: float
    update_crowding: float
    cores: int
    links: Mapping[str, Link]

    def model(self, link: str = WITHIN, per_host: int | None = None) -> StepModel:
        """Build a time model for hosts of `per_host` workers; default what fills this one, or 1 if not `WITHIN`."""
        per_host = per_host or (self.cores if link == WITHIN else 1)
        network = (self.links.get(WITHIN, FREE), self.links.get(link, FREE), per_host)
        constants = (self.plain, self.noise, self.update, self.gradient_bytes)
        return StepModel(*constants, *network, self.crowding, self.update_crowding)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values and lists, ready for JSON; an infinite bandwidth is None."""
        update = {"optimizers": list(self.update), "update": list(self.update.values())}
        latency = [link.latency for link in self.links.values()]
        bandwidth = [link.bandwidth if math.isfinite(link.bandwidth) else None for link in self.links.values()]
        values = {**vars(self), "plain": list(self.plain), "noise": list(self.noise), **update}
        return values | {"links": list(self.links), "latency": latency, "bandwidth": bandwidth}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Rebuild the calibration that `to_dict` wrote."""
        update = dict(zip(values["optimizers"], values["update"], strict=True))
        scalars = {name: values[name] for name in ("gradient_bytes", "crowding", "update_crowding")}
        named = zip(values["links"], values["latency"], values["bandwidth"], strict=True)
        links = {name: Link(latency, math.inf if speed is None else speed) for name, latency, speed in named}
        plain, noise = (Compute(*values[kind]) for kind in ("plain", "noise"))
        return cls(plain, noise, update, **scalars, cores=int(values["cores"]), links=links)


def calibration(runs: Sequence[RunResult], *, rates: Sequence[str], seconds: float, threads: int = 1) -> dict[str, Any]:
    """Calibrate with the spec of a study's one run, keeping `threads` cores busy; no `rates` if it has no hosts."""
    return calibrate(runs[0].spec, rates if unsupported_reason() is None else (), seconds).to_dict()


def calibrate(spec: RunSpec, rates: Sequence[str] = (), seconds: float = PIECE_SECONDS) -> Calibration:
    """Measure this machine with a spec's model, task (for its head and tokens), threads of a worker and device.

    `rates` are of links between two hosts of this machine to measure as well; a UserError where it cannot have hosts.
    """
    spec = spec.override(workers=1, max_steps=1).resolved()
    here = {"": spec.override(workers=max(1, _workers_per_host(spec)))}
    measured: Calibration = time_in_workers(measure_pieces, here, {"seconds": seconds})
    links = dict(measured.links)
    for rate in rates:
        with open_hosts(2, rate) as hosts:
            links[rate] = time_in_workers(measure_messages, {"": spec.override(workers=2)}, {"seconds": seconds}, hosts)
    return replace(measured, links=links)


def _workers_per_host(spec: RunSpec) -> int:
    """Return how many workers fill this host: GPUs, or cores over the threads of a worker."""
    if spec.machine.device == "cuda":
        import torch

        return torch.cuda.device_count()
    return usable_cores() // (spec.machine.threads or 1)


def _crowding(timings: Iterable[Mapping[str, list[float]]]) -> float:
    """Return the geometric mean of the slow-down when all cores do the same, at least 1."""
    ratios = [np.log(np.divide(timing["together"], timing["alone"])) for timing in timings]
    return max(1.0, float(np.exp(np.mean(ratios))))


def measure_pieces(specs: Mapping[str, RunSpec], world: World, *, seconds: float) -> Calibration | None:
    """Measure the pieces of a step, each for about so long, as one of the workers; only the first one has a result."""
    timer, crowded = _PieceTimer(specs, world, seconds), world.size > 1
    computing = [timer.computing(kind, SHAPES) for kind in ("plain", "noise")]
    crowd = [timer.computing("plain", CROWD, together=True)] if crowded else []
    updates = {name: timer.update(name) for name in ("adamw", "lamb")}
    links: dict[str, Any] = {WITHIN: timer.messages()} if crowded else {}
    if not world.leads:
        return None
    plain, noise = (fit_compute(kind["loads"], kind["alone"]) for kind in computing)
    update = {name: timing["alone"][0] for name, timing in updates.items()}
    slowed, update_slowed = (_crowding(timings) if crowded else 1.0 for timings in (crowd, updates.values()))
    size = float(timer.training.gradient.flat.nbytes)
    return Calibration(plain, noise, update, size, slowed, update_slowed, world.size, links)


def measure_messages(specs: Mapping[str, RunSpec], world: World, *, seconds: float) -> Link | None:
    """Measure only the link of `measure_pieces`."""
    return _PieceTimer(specs, world, seconds).messages()


class _PieceTimer:
    """A trainer that is given synthetic batches."""

    def __init__(self, specs: Mapping[str, RunSpec], world: World, seconds: float) -> None:
        from scala_lab.methods.base import build_step
        from scala_lab.training.distributed import World

        (spec,) = specs.values()
        self.world, self.seconds = world, seconds
        self.training = TimedTraining(spec, world).training
        self.alone = World(0, 1, world.device)
        self.training.world = self.alone  # each worker runs the whole synthetic batch
        self.batches = {shape: _synthetic_batch(self.training.data.train, *shape) for shape in SHAPES}
        specs = {"plain": RunSpec.of(method="plain"), "noise": RunSpec.of(method="scala", delay=0.0)}
        recipes = {kind: spec.resolved().recipe for kind, spec in specs.items()}
        self.steps = {kind: build_step(recipe.method, recipe.options) for kind, recipe in recipes.items()}

    def computing(self, kind: str, shapes: Sequence[Shape], together: bool = False) -> dict[str, list[Any]]:
        """Time a step's computing by shape, beside the loads; shapes take turns, as batches of a run do."""
        self.training.step_function = self.steps[kind]
        plans = [self.batches[shape][0] for shape in shapes]
        loads = [planned_load(plan, 0) for plan in plans]
        return {"loads": loads, **self._repeat([partial(self._accumulate, shape) for shape in shapes], together)}

    def update(self, optimizer: str) -> dict[str, list[float]]:
        """Time an update."""
        from scala_lab.optim.build import build_optimizer

        optim = RunSpec.of(optimizer=optimizer).resolved().optim
        self.training.spec = replace(self.training.spec, optim=optim)
        self.training.optimizer = build_optimizer(self.training.model, optim, 1e-6)
        return self._repeat([lambda: self.training.update(0)], together=True, fill_caches=True)

    def messages(self) -> Link | None:
        """Fit the link to timed all-reduces, those of the worker that comes last and waits for nobody."""
        import torch

        sizes = (*MESSAGES, self.training.gradient.flat.nbytes)
        sends = [partial(self.world.all_reduce, torch.zeros(size // 4, device=self.world.device)) for size in sizes]
        rounds = self._rounds(lambda: [self._attempt(send, fill_caches=True)[0] for send in sends])
        everyone = self.world.gather(rounds)  # (workers, rounds, sizes)
        if everyone is None:
            return None
        return fit_link(sizes, np.median(np.min(everyone, axis=0), axis=0).tolist(), self.world.size)

    def _repeat(self, pieces: list[Callable[[], Any]], together: bool, fill_caches: bool = False) -> dict[str, Any]:
        """Time pieces in turns; only the first worker has a result.

        It is seconds by piece: of the first worker `alone`, while the others wait; and of the slowest worker, all
        beginning at once, `together` if that is wanted, else 0.
        """

        def time_piece(piece: Callable[[], Any]) -> tuple[float, float]:
            attempt = partial(self._attempt, piece, fill_caches)
            alone = undisturbed(attempt, self.alone) if self.world.leads else 0.0
            barrier(self.world)
            crowd = undisturbed(partial(attempt, wait=True), self.world) if together else 0.0
            barrier(self.world)
            return alone, crowd

        everyone = self.world.gather(self._rounds(lambda: list(map(time_piece, pieces))))
        if everyone is None:
            return {}
        seconds = np.array(everyone)  # (workers, rounds, pieces, 2)
        alone, slowest = np.median(seconds[0, ..., 0], axis=0), np.median(seconds[..., 1].max(axis=0), axis=0)
        return {"alone": alone.tolist(), "together": slowest.tolist()}

    def _rounds(self, one_round: Callable[[], list[Any]]) -> list[list[Any]]:
        """Run as many rounds as fit into the time, after a first one that does not count."""
        import torch

        began = time.perf_counter()
        one_round()
        fitting = round(self.seconds / (time.perf_counter() - began))
        count = torch.tensor([min(MAX_ROUNDS, max(MIN_ROUNDS, fitting))], device=self.world.device)
        self.world.broadcast([count])
        return [one_round() for _ in range(int(count))]

    def _attempt(self, piece: Callable[[], Any], fill_caches: bool, wait: bool = False) -> tuple[float, float]:
        """Time a piece, all workers beginning at once if they `wait`; returns also the share of lost time."""
        if fill_caches:
            self._accumulate(CACHE_FILLER)
        if wait:
            barrier(self.world)
        seconds, idle = time_call(piece, self.world)
        return seconds, idle / seconds

    def _accumulate(self, shape: Shape) -> None:
        self.training.plan, split = self.batches[shape]
        self.training.data = replace(self.training.data, train=split)
        self.training.accumulate(0)


def _synthetic_batch(tokens: TokenSplit, rows: int, longest: int, micro_batch: int) -> tuple[BatchPlan, TokenSplit]:
    """Make a batch of a task's tokens, and a plan that cuts it only where a micro-batch is full."""
    # The shortest rows are about a third shorter than the longest: batches of a run hardly ever lack padding.
    lengths = longest - (np.arange(rows) * 5 // rows) * longest // 15
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.resize(tokens.ids, offsets[-1])
    types = None if tokens.type_ids is None else np.zeros_like(ids)
    plan = BatchPlan(lengths, rows, micro_batch, part_cost=float(rows * longest))
    return plan, TokenSplit(ids, offsets, types, np.resize(tokens.labels, rows))
