"""One worker of a timed run: `python -m scala_lab.scaling.timed_worker JOB`.

Every step is run twice on the same rows, with the all-reduce and without it. All workers begin a step together, so
that what one of them lost before is not counted as communication.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from scala_lab.clock import PHASES
from scala_lab.files import write_json
from scala_lab.runs.budget import passes_per_sample
from scala_lab.scaling.flops import forward_flops, matmul_rate
from scala_lab.scaling.step_model import planned_load
from scala_lab.spec import RunSpec
from scala_lab.training.loop import Training
from scala_lab.training.preparation import prepare
from scala_lab.training.worker import work
from scala_lab.training.world import World, join_world

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "float64": torch.float64}


class Apart(World):
    """Workers that keep their gradients to themselves, so that a step's time without communication can be seen.

    Their weights part, so nothing that is trained so is ever saved: only timed runs are among them.
    """

    def sum(self, buffer: Tensor) -> None:
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
        training = self.training
        training.world = self.apart if apart else self.together
        _meet(training.world)
        before, started = training.clock.totals(), time.perf_counter()
        training.accumulate(step)
        with training.clock.phase("optimizer"):
            training.update(step)
        after = training.clock.totals()
        whole = time.perf_counter() - started
        return {"step": whole, **{name: after[name] - before.get(name, 0.0) for name in PHASES if name in after}}

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
    """Time specs in turns, step by step; called by every worker, and the first one's answer is whole.

    Returns:
        `matmul_rate` of all workers at once, and under `runs`, by name: `steps_per_epoch`, and for each step kept,
        `together` (by phase and `step`, on the first worker), `apart` (`step` on the slowest) and `sizes`.
    """
    resolved = {name: spec.resolved() for name, spec in specs.items()}
    first = next(iter(resolved.values()))
    world = join_world(first)
    try:
        trainings = {name: TimedTraining(spec, world) for name, spec in resolved.items()}
        _meet(world)
        rates = world.gather(matmul_rate(world.device, DTYPES[first.machine.precision]))
        together: dict[str, list[dict[str, float]]] = {name: [] for name in specs}
        apart: dict[str, list[float]] = {name: [] for name in specs}
        for step in range(warmup + steps):
            for name, timed in trainings.items():
                together[name].append(timed.step(step, apart=False))
                alone = together[name][-1] if world.size == 1 else timed.step(step, apart=True)
                apart[name].append(alone["step"])
        everyone = world.gather(apart)
    finally:
        world.leave()
    if rates is None or everyone is None:
        return {}
    kept = range(warmup, warmup + steps)
    runs = {
        name: {
            "steps_per_epoch": timed.training.plan.steps_per_epoch,
            "gradient_bytes": timed.training.gradient.flat.nbytes,
            "together": [together[name][step] for step in kept],
            "apart": [max(worker[name][step] for worker in everyone) for step in kept],
            "sizes": [timed.sizes(step) for step in kept],
        }
        for name, timed in trainings.items()
    }
    return {"matmul_rate": sum(rates), "runs": runs}


def _meet(world: World) -> None:
    """Wait for all workers, and for what their device still has to do."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    if world.size > 1:
        dist.barrier()


def _time(values: dict[str, Any]) -> None:
    specs = {name: RunSpec.from_dict(spec) for name, spec in values["specs"].items()}
    found = time_steps(specs, values["steps"], values["warmup"])
    if found:
        write_json(Path(values["found"]), found)


if __name__ == "__main__":
    sys.exit(work(sys.argv[1], _time))
