"""How long one waits: for `scala-lab --help`, and from the start of `scala-lab train` to its first step's end.

    python benchmarks/startup.py [--rounds 5]

Fresh processes, one after the other. The first step counts as done when its line is in metrics.jsonl; the run is
stopped then. Beside the two stands what no program in Python could fall below: an interpreter that does nothing, and
one that only imports torch and the model's class from transformers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from measures import alone, write_result
from turns import in_turns

COMMAND = [sys.executable, "-m", "scala_lab"]
IMPORTS = "import torch; from transformers import BertForSequenceClassification"


@dataclass(frozen=True)
class Options:
    """Waiting times at the start."""

    rounds: int = 5
    """Starts of each."""
    patience: float = 120.0
    """Seconds after which a first step that is not done counts as a failure."""


def process_seconds(*command: str) -> float:
    """From start to end of a process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def first_step_seconds(patience: float) -> float:
    """From the start of `scala-lab train` to the first line of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        log, started = Path(folder) / "run" / "metrics.jsonl", time.perf_counter()
        process = subprocess.Popen([*COMMAND, "train", "--out", f"{folder}/run"], stderr=subprocess.PIPE)
        try:
            while not (log.exists() and b"\n" in log.read_bytes()):
                if process.poll() is not None or time.perf_counter() - started > patience:
                    process.kill()
                    raise RuntimeError(f"no step was done: {process.communicate()[1].decode()[-1000:]}")
                time.sleep(0.01)
            return time.perf_counter() - started
        finally:
            process.kill()
            process.communicate()


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/startup.json."""
    seconds = in_turns(
        {
            "interpreter": lambda _: process_seconds(sys.executable, "-c", ""),
            "help": lambda _: process_seconds(*COMMAND, "--help"),
            "imports": lambda _: process_seconds(sys.executable, "-c", IMPORTS),
            "first step": lambda _: first_step_seconds(options.patience),
        },
        options.rounds,
    )
    measures = [
        alone("scala-lab --help", seconds["help"], "s", bound="at most", goal=0.5, limit=min(seconds["interpreter"])),
        alone(
            "scala-lab train, first step done",
            seconds["first step"],
            "s",
            bound="at most",
            goal=5.0,
            limit=min(seconds["imports"]),
        ),
    ]
    write_result("startup", "Start-up", measures, asdict(options), {"seconds": seconds})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
