"""What the clock inside a step costs, beside the step itself.

    python benchmarks/clock.py [--threads 1] [--rounds 20]

On the CPU a phase is two readings of the time: its cost is measured on empty phases, and counted as often as a step
opens one. The smallest step that the studies take, B=32 on the embedded encoder, is the worst case.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import tyro
from measures import compared, write_result
from our_side import OurSide
from turns import in_turns

from scala_lab import RunSpec

EMPTY_PHASES = 20_000
METHODS: dict[str, dict[str, Any]] = {
    "lamb": {"method": "lamb"},
    "scala": {"method": "scala", "delay": 0.0},
    "freelb": {"method": "freelb"},
}


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
    from scala_lab.clock import Clock

    class Counting(Clock):
        opened = 0

        def phase(self, name):
            self.opened += 1
            return super().phase(name)

    clock = Clock()
    started = time.perf_counter()
    for _ in range(EMPTY_PHASES):
        with clock.phase("data"):
            pass
    phase_seconds = (time.perf_counter() - started) / EMPTY_PHASES
    sides, clocks = {}, {}
    for name, method in METHODS.items():
        spec = RunSpec.of(**method, batch_size=options.batch_size, threads=options.threads)
        sides[name] = OurSide(spec)
        sides[name].training.clock = clocks[name] = Counting()
    seconds = in_turns({name: side.step for name, side in sides.items()}, options.rounds, warm_up=2)
    measures, details = [], {"phase_microseconds": 1e6 * phase_seconds, "step_seconds": seconds}
    for name, taken in seconds.items():
        phases = 1 + clocks[name].opened / (len(taken) + 2)  # a run also opens one around the update
        details[name] = {"phases_per_step": phases}
        measures.append(
            compared(
                f"clock in a step of {name}, B={options.batch_size}",
                [1e3 * phases * phase_seconds],
                [1e3 * value for value in taken],
                "ms",
                "ours over peer",
                "whole step",
                bound="at most",
                goal=0.01,
            )
        )
    write_result("clock", "Cost of taking the time", measures, asdict(options), details)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
