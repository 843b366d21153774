"""Whole runs of six epochs: ScaLA with noise in the last one over plain training, and FreeLB-3 over ScaLA.

    python benchmarks/whole_runs.py [--rows 1024] [--batch-size 256] [--rounds 2]

Real runs through `train`, folder, evaluation and checkpoint included, in turns: LAMB without noise, `scala-effective`
with t_s = 5, and our FreeLB with K = 3 passes, which is faster than the published one (benchmarks/steps.py measures
both). With a step with noise at twice a plain one the least a run with t_s = 5 can cost is 7/6 of a plain run.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro
from inputs import Inputs
from measures import compared, write_result
from turns import in_turns

from scala_lab import RunSpec, train

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
    batch_size: int = 256
    """Rows of a step."""
    rounds: int = 2
    """Runs of each method."""
    threads: int = 2
    """CPU threads."""


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/whole_runs.json."""
    values = {"epochs": 6, "batch_size": options.batch_size, "train_samples": options.rows, "eval_samples": 64}
    where = options.inputs.of(options.task)
    specs = {name: RunSpec.of(**where, **values, threads=options.threads, **method) for name, method in METHODS.items()}
    noised: dict[str, int] = {}

    def run(name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            noised[name] = train(specs[name], Path(folder) / "run").record["counts"]["noised_samples"]

    for spec in specs.values():  # weights and tokens are in memory then, for all alike
        with tempfile.TemporaryDirectory() as folder:
            train(spec.override(max_steps=1), Path(folder) / "run")
    seconds = in_turns({name: lambda _, name=name: run(name) for name in specs}, options.rounds, warm_up=0)
    measures = [
        compared(
            "6-epoch ScaLA run, t_s = 5",
            seconds["scala"],
            seconds["plain"],
            "s",
            "ours over peer",
            "plain run",
            bound="at most",
            goal=1.25,
            limit=7 / 6,
        ),
        compared(
            "6-epoch ScaLA run, t_s = 5",
            seconds["scala"],
            seconds["freelb"],
            "s",
            "peer over ours",
            "FreeLB-3 run",
            goal=2.3,
        ),
    ]
    settings = {**asdict(options), "model": Path(where["model"]).name}
    write_result("whole_runs", "Whole runs", measures, settings, {"seconds": seconds, "noised_samples": noised})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
