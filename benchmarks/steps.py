"""What noise costs: a training step of each method over a plain step on the same rows, in turns in one run.

    python benchmarks/steps.py [--tasks sst2 stsb mnli] [--batch-size 256] [--rounds 5]

All step functions run in one training loop on one model, so that they differ in nothing but what they do with a
micro-batch: forward, backward and the same LAMB update. Ours are `scala-effective` with the inner pass as the paper
writes it (exact) and without it (fused; on three classes one more pull through the clean graph), and `freelb`. The
peers are the published packages: smart-pytorch's SMARTLoss, and torchblocks' FreeLB with the same K = 3 passes.

In forward passes F, with 2F for a backward: plain 3F, exact 8F, fused 6F (7F on three classes), FreeLB-3 9F, SMART 8F.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from inputs import Inputs
from measures import Measure, compared, write_result
from our_side import OurSide
from peers import add_peers
from turns import in_turns

from scala_lab import RunSpec

FUSED_GOALS = {1: 2.1, 2: 2.1, 3: 2.6}
"""Fused step over plain step, by outputs of the head."""
FUSED_LIMITS = {1: 2.0, 2: 2.0, 3: 7 / 3}
KINDS = {1: "regression", 2: "two classes", 3: "three classes"}


@dataclass(frozen=True)
class Options:
    """What noise costs in a step."""

    inputs: tyro.conf.OmitArgPrefixes[Inputs] = field(default_factory=Inputs)
    tasks: tuple[str, ...] = ("sst2", "stsb", "mnli")
    """GLUE tasks: two classes, regression, three classes."""
    batch_size: int = 256
    """Rows of a step."""
    rounds: int = 5
    """Steps of each method."""
    threads: int = 2
    """CPU threads."""


def step_functions(settings: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """What takes turns, by name; the plain step first."""
    from peers.adversaries import SmartStep, TorchblocksFreeLBStep

    def ours(method: str, **options: Any) -> Callable[..., Any]:
        return OurSide(RunSpec.of(**settings, method=method, **options)).training.step_function

    return {
        "plain": ours("lamb"),
        "fused": ours("scala-effective", pga="fused", delay=0.0),
        "exact": ours("scala-effective", pga="exact", delay=0.0),
        "freelb": ours("freelb"),
        "smart-pytorch": SmartStep(),
        "torchblocks": TorchblocksFreeLBStep(),
    }


def measures_of(task: str, outputs: int, seconds: Mapping[str, list[float]]) -> list[Measure]:
    """Each method over the plain step."""
    names = {
        "fused": "PGA-1 fused",
        "exact": "PGA-1 as written",
        "freelb": "FreeLB-3",
        "smart-pytorch": "SMART (smart-pytorch)",
        "torchblocks": "FreeLB-3 (torchblocks)",
    }
    found = []
    for side, name in names.items():
        goals = {"goal": FUSED_GOALS[outputs], "limit": FUSED_LIMITS[outputs]} if side == "fused" else {}
        title = f"{name}, {task} ({KINDS[outputs]})"
        found.append(
            compared(
                title, seconds[side], seconds["plain"], "s", "ours over peer", "plain step", bound="at most", **goals
            )
        )
    return found


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/steps.json."""
    add_peers()
    found: list[Measure] = []
    details: dict[str, Any] = {}
    for task in options.tasks:
        settings = {
            **options.inputs.of(task),
            "batch_size": options.batch_size,
            "train_samples": 4096,
            "eval_samples": 64,
            "threads": options.threads,
        }
        functions = step_functions(settings)
        side = OurSide(RunSpec.of(**settings, method="lamb"))
        print(side.spec.data.task, flush=True)
        seconds = in_turns(
            {name: partial(side.step, function=function) for name, function in functions.items()},
            options.rounds,
        )
        details[side.spec.data.task] = {"model": Path(side.spec.encoder.model).name, "seconds": seconds}
        found += measures_of(side.spec.data.task, side.training.data.task.outputs, seconds)
    write_result("steps", "Cost of noise in a step", found, asdict(options), details)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
