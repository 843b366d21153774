"""One worker of a timed run: `python -m scala_lab.timing.timed_worker JOB`.

Every step is run twice on the same rows, with the all-reduce and without it; which comes first changes from step to
step, so that neither always meets shapes for the first time. All workers begin a step together, so that what one of
them lost before is not counted as communication. A step that other processes disturbed is run again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from scala_lab.clock import PHASES
from scala_lab.config import RunSpec
from scala_lab.files import write_json
from scala_lab.methods.cost import passes_per_sample
from scala_lab.timing.flops import forward_flops, matmul_rate
from scala_lab.timing.model import planned_load
from scala_lab.timing.undisturbed import clocked, finish, undisturbed
from scala_lab.training.distributed import World, join_world
from scala_lab.training.precision import AUTOCAST, matrix_products
from scala_lab.training.preparation import prepare
from scala_lab.training.trainer import Training
from scala_lab.training.worker import work

if TYPE_CHECKING:
    from torch import Tensor


WAYS = (False, True)
"""With communication, and apart."""
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float64": torch.float64, **AUTOCAST}


class Apart(World):
    """Workers that keep their gradients to themselves, so that a step's time without communication can be seen.

    Their weights part, so nothing that is trained so is ever saved: only timed runs are among them.
    """

    def all_reduce(self, buffer: Tensor) -> None:
        """Leave the buffer as it is."""


class TimedTraining:
    """A spec's trainer under the clock."""

    def __init__(self, spec: RunSpec, world: World) -> None:
        self.training = Training(spec, prepare(spec), world)
        self.training.model.train()
        self.together, self.apart = world, Apart(world.rank, world.size, world.device)
        self.forward, self.passes = forward_flops(self.training.model), max(passes_per_sample(spec))

    def step(self, step: int, apart: bool) -> dict[str, float]:
        """Seconds of a step by phase, of the whole under `step`."""
        return undisturbed(lambda: self._step(step, apart), self.together)

    def _step(self, step: int, apart: bool) -> tuple[dict[str, float], float]:
        """The same of one attempt, and the share of the time outside of the all-reduce that was lost to others."""
        training = self.training
        training.world = self.apart if apart else self.together
        _meet(training.world)
        before = training.clock.totals()
        whole, idle = clocked(lambda: self._run(step), training.world)
        after = training.clock.totals()
        seconds = {name: after[name] - before.get(name, 0.0) for name in PHASES if name in after}
        waited = seconds["all-reduce"]
        return {"step": whole, **seconds}, max(0.0, idle - waited) / (whole - waited)

    def _run(self, step: int) -> None:
        self.training.accumulate(step)
        with self.training.clock.phase("optimizer"):
            self.training.update(step)

    def sizes(self, step: int) -> dict[str, Any]:
        """Samples, tokens and operations of a step over all workers, and the load of the first, which has most."""
        plan = self.training.plan
        rows = plan.global_batch(step)
        lengths = plan.lengths[rows]
        return {
            "samples": float(len(rows)),
            "tokens": float(lengths.sum()),
            "flops": self.passes * self.forward.of(lengths),
            "load": vars(planned_load(plan, rows)),
        }


def time_steps(specs: Mapping[str, RunSpec], steps: int, warmup: int) -> dict[str, Any]:
    """Time specs, those of one task in turns, step by step; called by every worker, and the first has the answer.

    Tasks follow one another, so that the models of one of them are in memory at a time.

    Returns:
        `matmul_rate` of all workers at once, and under `runs`, by name: `steps_per_epoch`, `gradient_bytes`, and for
        each step kept, `together` (by phase and `step`, on the first worker), `apart` (`step` on the slowest),
        `exchange` (the all-reduce on the worker that came to it last, and so waited for nobody) and `sizes`.
    """
    resolved = {name: spec.resolved() for name, spec in specs.items()}
    first = next(iter(resolved.values()))
    world = join_world(first)
    try:
        _meet(world)
        rates = world.gather(matmul_rate(world.device, DTYPES[first.machine.precision]))
        runs: dict[str, Any] = {}
        for data in dict.fromkeys(spec.data for spec in resolved.values()):
            of_task = {name: spec for name, spec in resolved.items() if spec.data == data}
            runs |= _take_turns({name: TimedTraining(spec, world) for name, spec in of_task.items()}, steps, warmup)
    finally:
        world.leave()
    return {} if rates is None else {"matmul_rate": sum(rates), "runs": runs}


def _take_turns(trainings: Mapping[str, TimedTraining], steps: int, warmup: int) -> dict[str, Any]:
    """What the first worker reports of specs that take turns; nothing on the others."""
    world = next(iter(trainings.values())).together
    own: dict[bool, dict[str, list[dict[str, float]]]] = {apart: {name: [] for name in trainings} for apart in WAYS}
    for step in range(warmup + steps):
        for name, timed in trainings.items():
            for apart in WAYS if step % 2 == 0 else WAYS[::-1]:
                if world.size > 1 or not apart:
                    own[apart][name].append(timed.step(step, apart))
    everyone = world.gather(own)
    if everyone is None:
        return {}
    kept = range(warmup, warmup + steps)
    alone = world.size == 1
    return {
        name: {
            "steps_per_epoch": timed.training.plan.steps_per_epoch,
            "gradient_bytes": timed.training.gradient.flat.nbytes,
            "together": [own[False][name][step] for step in kept],
            "apart": [max(worker[not alone][name][step]["step"] for worker in everyone) for step in kept],
            "exchange": [min(worker[False][name][step]["all-reduce"] for worker in everyone) for step in kept],
            "sizes": [timed.sizes(step) for step in kept],
        }
        for name, timed in trainings.items()
    }


def _meet(world: World) -> None:
    """Wait for all workers, and for what their device still has to do."""
    finish(world)
    if world.size > 1:
        dist.barrier()


def _time(values: dict[str, Any]) -> None:
    specs = {name: RunSpec.from_dict(spec) for name, spec in values["specs"].items()}
    with matrix_products(next(iter(specs.values())).machine.precision):
        found = time_steps(specs, values["steps"], values["warmup"])
    if found:
        write_json(Path(values["found"]), found)


if __name__ == "__main__":
    work(sys.argv[1], _time)
