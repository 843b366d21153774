"""Time training steps of several methods in turns, in this process or in P workers.

Methods take turns within every step and share its rows, so that drift of the machine affects all alike and steps can be
compared in pairs. Several workers run each step with the all-reduce and again without it, on the same rows: what it
takes longer is exposed communication, as the trainer overlaps no computing with the all-reduce. Where other processes
took more than `MAX_LOST` of a worker's time, all workers repeat the step.

`phases` and `step_times` are what studies measure, who import this module to declare it: torch is imported only where
something is timed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.polynomial import Polynomial

from scala_lab.config import MachineSpec, RunSpec
from scala_lab.methods.cost import passes_per_sample
from scala_lab.timing.hosts import open_hosts, unsupported_reason
from scala_lab.timing.model import planned_load

if TYPE_CHECKING:
    from torch import Tensor

    from scala_lab.training.distributed import WorkerLauncher, World
    from scala_lab.training.run_dir import RunResult

    Runs = Sequence[RunResult]

T = TypeVar("T")

STEP = "step"  # stands beside the phases: the whole step
MAX_LOST = 0.03  # share of its time that a worker may lose to other processes before its measurement is repeated
MAX_ATTEMPTS = 4
"""How often something is measured at most; if every attempt was disturbed, the least disturbed one counts."""
MATMUL_SECONDS, MATRIX = 0.2, 1024
"""How long matrix products are timed, and the matrices' width, with which nothing but arithmetic counts."""


def phases(runs: Runs, *, names: list[str], steps: int, warmup: int, threads: int = 1) -> dict[str, Any]:
    """Measure the seconds of each phase of a step in this process, methods in turns, after some steps of warm-up.

    Each run stands for a method; only its spec is used. The result has lists over steps, `method:phase` and, for the
    whole step, `method:step`; and `cpu_share`, the share of the time in which each thread was computing.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    from scala_lab.training.distributed import join_world

    specs = [run.spec.override(max_steps=warmup + steps).resolved() for run in runs]
    trainings = {name: TimedTraining(spec, join_world(spec.machine)) for name, spec in zip(names, specs, strict=True)}
    result: dict[str, Any] = {}
    for step in range(warmup + steps):
        for name, timed in trainings.items():
            seconds, _ = timed.attempt(step)
            if step >= warmup:
                for phase, value in seconds.items():
                    result.setdefault(f"{name}:{phase}", []).append(value)
    result["cpu_share"] = (time.process_time() - cpu) / (time.perf_counter() - wall) / threads
    return result


def step_times(
    runs: Runs, *, names: list[str], workers: int, steps: int, warmup: int, rate: str | None = None, threads: int = 1
) -> dict[str, Any]:
    """Measure steps with some number of workers, which keep `threads` cores busy; see `time_steps`.

    With a `rate`, the workers are on two hosts of this machine, joined by a link of that rate. Where it cannot have
    them, the result is only `lack`: the reason.
    """
    lack = None if rate is None else unsupported_reason()
    if lack is not None:
        return {"lack": lack}
    short = {"workers": workers, "max_steps": warmup + steps}
    specs = {name: run.spec.override(**short) for name, run in zip(names, runs, strict=True)}
    with nullcontext() if rate is None else open_hosts(2, rate) as hosts:
        return time_in_workers(time_steps, specs, {"steps": steps, "warmup": warmup}, hosts)


def time_steps(specs: Mapping[str, RunSpec], world: World, *, steps: int, warmup: int) -> dict[str, Any]:
    """Time the steps of specs as one of the workers, one task after another; the first worker's result is complete.

    It has lists over steps, by `name:quantity`: seconds of a `step` and of its phases on the first worker, whose
    all-reduce includes waiting for the slowest worker; of a step `without` communication on the slowest worker; of the
    `exchange`, the all-reduce on the worker that reaches it last and so waits for nobody; `samples`, `tokens` (without
    padding) and `flops` over all workers; and `load micro_batches` and so on of the worker with most
    to do. Also `name:steps_per_epoch`, `gradient_bytes`, and `matmul_rate`, of all workers together.
    """
    barrier(world)
    rates = world.gather(matmul_rate(world, next(iter(specs.values())).machine.precision))
    result: dict[str, Any] = {}
    for data in dict.fromkeys(spec.data for spec in specs.values()):
        of_task = {name: TimedTraining(spec, world) for name, spec in specs.items() if spec.data == data}
        result |= _take_turns(of_task, world, steps, warmup)
    return result | {"matmul_rate": sum(rates or [])}


def _take_turns(trainings: Mapping[str, TimedTraining], world: World, steps: int, warmup: int) -> dict[str, Any]:
    """Time trainings step by step, with and without communication; only the first worker has a result.

    Which of both comes first changes from step to step, so that neither is always the first to meet a shape.
    """
    own: dict[tuple[str, bool], list[dict[str, float]]] = defaultdict(list)
    for step in range(warmup + steps):
        for name, timed in trainings.items():
            for silent in (False, True) if step % 2 == 0 else (True, False):
                if world.size > 1 or not silent:
                    own[name, silent].append(undisturbed(partial(timed.attempt, step, silent), timed.world))
    everyone = world.gather(own)
    if everyone is None:
        return {}
    counted, has_silent = range(warmup, warmup + steps), world.size > 1
    result: dict[str, Any] = {}
    for name, timed in trainings.items():
        first = own[name, False]
        lists = {
            STEP: [first[step][STEP] for step in counted],
            "without": [max(worker[name, has_silent][step][STEP] for worker in everyone) for step in counted],
            **{phase: [first[step][phase] for step in counted] for phase in first[0]},
            "exchange": [min(worker[name, False][step]["all-reduce"] for worker in everyone) for step in counted],
            **timed.work(counted),
        }
        result |= {f"{name}:{quantity}": values for quantity, values in lists.items()}
        result[f"{name}:steps_per_epoch"] = timed.training.plan.steps_per_epoch
        result["gradient_bytes"] = timed.training.gradient.flat.nbytes
    return result


class TimedTraining:
    """A spec's trainer whose steps are timed, with communication or without it."""

    def __init__(self, spec: RunSpec, world: World) -> None:
        from scala_lab.training.preparation import prepare
        from scala_lab.training.trainer import Training

        self.training = Training(spec, prepare(spec), world)
        self.training.model.train()
        self.world, self.silent_world = world, replace(world, silent=True)

    def attempt(self, step: int, silent: bool = False) -> tuple[dict[str, float], float]:
        """Run a step once; returns seconds by phase and of the whole `step`, and the share lost to other processes."""
        training = self.training

        def run() -> None:
            training.accumulate(step)
            with training.clock.phase("optimizer"):
                training.update(step)

        training.world = self.silent_world if silent else self.world
        barrier(training.world)  # what a worker lost before the step is no communication
        before = training.clock.totals()
        whole, idle = time_call(run, training.world)
        seconds = {phase: total - before.get(phase, 0.0) for phase, total in training.clock.totals().items()}
        waited = seconds["all-reduce"]
        return {**seconds, STEP: whole}, max(0.0, idle - waited) / (whole - waited)

    def work(self, steps: Sequence[int]) -> dict[str, list[float]]:
        """Count samples, tokens and operations of steps over all workers, and the load of the busiest."""
        forward, passes = forward_flops(self.training.model), max(passes_per_sample(self.training.spec))
        plan, group = self.training.plan, self.training.step_function.ascent_samples
        batches = [plan.global_batch(step) for step in steps]
        lengths = [plan.lengths[rows] for rows in batches]
        loads = [planned_load(plan, step, group)._asdict() for step in steps]
        return {
            "samples": [float(len(rows)) for rows in batches],
            "tokens": [float(tokens.sum()) for tokens in lengths],
            "flops": [passes * float(forward(tokens).sum()) for tokens in lengths],
            **{f"load {name}": [load[name] for load in loads] for name in loads[0]},
        }


def forward_flops(model: Any) -> Polynomial:
    """Return a classifier's floating-point operations in a forward pass over a row of T tokens, as a polynomial in T.

    Linear layers give the constant and the linear term, counted on two rows of different length; attention the square:
    q k^T and its product with v take 2 T^2 d each, in every layer. Embeddings, normalisation, activations and padding
    are not counted.
    """
    short, long = 4, 8
    at_short, at_long = _linear_flops(model, short), _linear_flops(model, long)
    per_token, config = (at_long - at_short) / (long - short), model.config
    return Polynomial([at_short - per_token * short, per_token, 4.0 * config.num_hidden_layers * config.hidden_size])


def _linear_flops(model: Any, length: int) -> float:
    import torch

    counts = []

    def count(layer: torch.nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts.append(2.0 * layer.in_features * output.numel())

    hooks = [layer.register_forward_hook(count) for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    training = model.training
    try:
        ids = torch.zeros((1, length), dtype=torch.long, device=next(model.parameters()).device)
        with torch.no_grad():
            model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return sum(counts)


def matmul_rate(world: World, precision: str) -> float:
    """Measure operations per second in the fastest of the matrix products that fit into `MATMUL_SECONDS`."""
    import torch

    from scala_lab.training.precision import AUTOCAST

    dtype = torch.float64 if precision == "float64" else AUTOCAST.get(precision, torch.float32)
    left, right = torch.randn(2, MATRIX, MATRIX, device=world.device).to(dtype)
    best, end = 0.0, time.perf_counter() + MATMUL_SECONDS
    while best == 0 or time.perf_counter() < end:
        started = time.perf_counter()
        torch.mm(left, right)
        synchronize(world)
        best = max(best, 2.0 * MATRIX**3 / (time.perf_counter() - started))
    return best


def time_call(function: Callable[[], Any], world: World) -> tuple[float, float]:
    """Time a call; returns also the seconds in which this thread did not compute: none on a GPU, for which it waits."""
    synchronize(world)
    own, started = time.thread_time(), time.perf_counter()
    function()
    synchronize(world)
    seconds = time.perf_counter() - started
    return seconds, 0.0 if world.device.type == "cuda" else max(0.0, seconds - (time.thread_time() - own))


def undisturbed(attempt: Callable[[], tuple[T, float]], world: World) -> T:
    """Repeat an attempt, on all workers, while any of them lost more than `MAX_LOST` of its time.

    `attempt` returns its result and the share of its time that this worker lost; the least disturbed result counts.
    """
    import torch
    import torch.distributed as dist

    attempts: list[tuple[float, T]] = []
    while len(attempts) < MAX_ATTEMPTS and not (attempts and attempts[-1][0] <= MAX_LOST):
        result, lost = attempt()
        if world.size > 1:
            largest = torch.tensor([lost], device=world.device)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            lost = float(largest)
        attempts.append((lost, result))
    return min(attempts, key=lambda pair: pair[0])[1]


def barrier(world: World) -> None:
    """Wait for all workers, and for what their devices still have to do."""
    synchronize(world)
    if world.size > 1:
        import torch.distributed as dist

        dist.barrier()


def synchronize(world: World) -> None:
    """Wait for what this worker's device still has to do."""
    if world.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def time_in_workers(
    function: Callable[..., Any],
    specs: Mapping[str, RunSpec],
    settings: Mapping[str, Any],
    launcher: WorkerLauncher | None = None,
) -> Any:
    """Start workers that all call `function(specs, world, **settings)`; return the first worker's result.

    The function stands at the top level of a module. The specs share a machine part, which says how many workers there
    are; they are on this host unless another `launcher` starts them.
    """
    from scala_lab.training.distributed import run_workers

    resolved = {name: spec.resolved() for name, spec in specs.items()}
    machine = next(iter(resolved.values())).machine
    return run_workers(partial(_join_and_time, partial(function, resolved, **settings), machine), machine, launcher)


def _join_and_time(function: Callable[[World], Any], machine: MachineSpec) -> Any:
    from scala_lab.training.distributed import join_world
    from scala_lab.training.precision import matrix_products

    with matrix_products(machine.precision):
        world = join_world(machine)
        try:
            return function(world)
        finally:
            world.leave()
