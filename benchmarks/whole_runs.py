"""Whole runs of six epochs: ScaLA with noise in the last one over plain training, and FreeLB-3 over ScaLA.

    python benchmarks/whole_runs.py [--rows 1024] [--batch-size 128] [--rounds 1]

Three runs side by side in one process, which take turns step by step through all their epochs: LAMB without noise,
`scala-effective` with t_s = 5, and our FreeLB with K = 3 passes, which is faster than the published one
(benchmarks/steps.py measures both). A run's time is the sum over its steps. With a step with noise at twice a plain one
the least a run with t_s = 5 can cost is 7/6 of a plain run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro
from inputs import Inputs
from measures import compared, write_result
from our_side import OurSide
from turns import in_turns

from scala_lab import RunSpec

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "lamb"},
    "scala": {"method": "scala-effective", "delay": 5.0},
    "freelb": {"method": "freelb", "optimizer": "lamb"},
}


@dataclass(frozen=True)
class Options:
    """Whole runs of six epochs."""

    inputs: tyro.conf.OmitArgPrefixes[Inputs] = field(default_factory=Inputs)
    task: str = "sst2"
    """A GLUE task."""
    rows: int = 1024
    """Training rows."""
    batch_size: int = 128
    """Rows of a step."""
    rounds: int = 1
    """Runs of each method."""
    threads: int = 2
    """CPU threads."""


def run_all(specs: dict[str, RunSpec]) -> dict[str, list[float]]:
    """Seconds of every step of the three runs."""
    sides = {name: OurSide(spec) for name, spec in specs.items()}
    steps = {side.training.steps for side in sides.values()}
    if len(steps) > 1:
        raise RuntimeError("the runs differ in their number of steps")
    return in_turns({name: side.step for name, side in sides.items()}, steps.pop(), warm_up=0)


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/whole_runs.json."""
    values = {"epochs": 6, "batch_size": options.batch_size, "train_samples": options.rows, "eval_samples": 64}
    where = options.inputs.of(options.task)
    specs = {name: RunSpec.of(**where, **values, threads=options.threads, **method) for name, method in METHODS.items()}
    rounds = [run_all(specs) for _ in range(options.rounds)]
    plain, scala, freelb = ([sum(steps[name]) for steps in rounds] for name in METHODS)
    name = "6-epoch ScaLA run, t_s = 5"
    measures = [
        compared(name, scala, plain, "s", "ours over peer", "plain run", bound="at most", goal=1.25, limit=7 / 6),
        compared(name, scala, freelb, "s", "peer over ours", "FreeLB-3 run", goal=2.3),
    ]
    settings = {**asdict(options), "model": Path(where["model"]).name}
    write_result("whole_runs", "Whole runs", measures, settings, {"seconds_of_steps": rounds})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
