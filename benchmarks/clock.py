"""What the clock inside a step costs, beside the step itself.

    python benchmarks/clock.py [--threads 1] [--rounds 20]

On the CPU a phase is two readings of the time: its cost is measured on empty phases, and counted as often as a step
opens one. The smallest step that the studies take, B=32 on the embedded encoder, is the worst case.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from scala_lab import RunSpec
from scala_lab.files import write_json

RESULTS = Path(__file__).parent / "results"
EMPTY_PHASES = 20_000


@dataclass(frozen=True)
class Options:
    """What the clock inside a step costs."""

    threads: int = 1
    """CPU threads."""
    rounds: int = 20
    """Steps measured for each method."""
    batch_size: int = 32
    """Rows of a step."""


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/clock.json."""
    import torch

    from scala_lab.clock import Clock
    from scala_lab.training.loop import Training
    from scala_lab.training.preparation import prepare
    from scala_lab.training.world import World

    class Counting(Clock):
        opened = 0

        def phase(self, name):
            self.opened += 1
            return super().phase(name)

    torch.set_num_threads(options.threads)
    clock = Clock()
    started = time.perf_counter()
    for _ in range(EMPTY_PHASES):
        with clock.phase("data"):
            pass
    phase_seconds = (time.perf_counter() - started) / EMPTY_PHASES
    result = {"phase_microseconds": 1e6 * phase_seconds}
    for method, more in (("lamb", {}), ("scala", {"delay": 0.0}), ("freelb", {})):
        spec = RunSpec.of(method=method, batch_size=options.batch_size, threads=options.threads, **more).resolved()
        training = Training(spec, prepare(spec), World(0, 1, torch.device("cpu")))
        training.model.train()
        training.clock = counting = Counting()
        seconds = []
        for step in range(options.rounds + 2):
            began = time.perf_counter()
            training.accumulate(step)
            with counting.phase("optimizer"):
                training.update(step)
            seconds.append(time.perf_counter() - began)
        phases = counting.opened / len(seconds)
        whole = statistics.median(seconds[2:])
        counted = sum(counting.totals().values()) / sum(seconds)
        result[method] = {"step_milliseconds": 1e3 * whole, "phases_per_step": phases}
        result[method] |= {"overhead": phases * phase_seconds / whole, "phases_over_step": counted}
    print(json.dumps(result, indent=2))
    write_json(RESULTS / "clock.json", result)


if __name__ == "__main__":
    main(tyro.cli(Options))
