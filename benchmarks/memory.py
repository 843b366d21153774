"""What noise costs in memory: the peak of a step of each method over that of a plain step at the same micro-batch.

    python benchmarks/memory.py [--layers 6] [--length 128] [--micro-batch 64] [--rounds 2]

Every step is taken in a process of its own, on made-up rows that all have the wanted length, with a random BERT. What
is compared is how far the process's resident memory rises above what it held before the step: activations, gradients on
their way, and what the allocator does not give back. The tests count the same in tensors, without an allocator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from growth import WIDTH, save_encoder
from measures import Measure, compared, write_result

MOST = 1.1
PLAIN = "plain step"
NOISY: Mapping[str, Mapping[str, Any]] = {
    "ScaLA, inner pass as written": {"method": "scala", "pga": "exact"},
    "ScaLA fused": {"method": "scala-effective", "pga": "fused"},
    "ScaLA fused, three classes": {"method": "scala-effective", "pga": "fused", "classes": 3},
    "ScaLA with the label's gradient": {"method": "scala", "label_gradient": True},
    "Gaussian noise": {"method": "gaussian"},
    "two draws": {"method": "two-draws"},
    "R-Drop": {"method": "rdrop"},
    "FreeLB-3": {"method": "freelb"},
    "SAM": {"method": "sam"},
}


@dataclass(frozen=True)
class Options:
    """What noise costs in memory."""

    layers: int = 6
    """Of the encoder."""
    length: int = 128
    """Tokens of a row."""
    micro_batch: int = 64
    """Rows that run at once."""
    rounds: int = 2
    """Processes per method."""
    threads: int = 2
    """CPU threads."""


def save_rows(path: Path, rows: int, words: int, classes: int) -> Path:
    """Rows of as many classes, all of the same length."""
    path.write_text("text,label\n" + "".join(f"{'a ' * words},{row % classes}\n" for row in range(rows)))
    return path


def run_one_step(folder: Path, options: Options, settings: Mapping[str, Any]) -> float:
    """Gigabytes by which a process grows in a step."""
    values = {"classes": 2, **settings}
    rows = save_rows(folder / "rows.csv", 2 * options.micro_batch, options.length, values.pop("classes"))
    if values["method"] in ("scala", "scala-effective", "gaussian", "two-draws"):
        values["delay"] = 0.0
    values |= {
        "task": str(rows),
        "text_columns": ["text"],
        "label_column": "label",
        "model": str(folder / "encoder"),
        "batch_size": options.micro_batch,
        "micro_batch": options.micro_batch,
        "train_samples": options.micro_batch,
        "max_length": options.length,
        "threads": options.threads,
    }
    command = [sys.executable, str(Path(__file__).with_name("one_step.py")), json.dumps(values)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    return int(ended.stdout.split()[-1]) / 1e9


def measures_of(grown: Mapping[str, list[float]]) -> list[Measure]:
    """Each method over the plain step."""
    return [
        compared(name, grown[name], grown[PLAIN], "GB", "ours over peer", PLAIN, bound="at most", goal=MOST)
        for name in NOISY
    ]


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/memory.json."""
    sides: dict[str, Mapping[str, Any]] = {PLAIN: {"method": "lamb"}, **NOISY}
    grown: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_encoder(folder / "encoder", options.layers)
        for number in range(options.rounds):
            for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
                grown[name].append(run_one_step(folder, options, sides[name]))
                print(f"  {name}: {grown[name][-1]:.3g} GB", flush=True)
    settings = {**asdict(options), "width": WIDTH}
    write_result("memory", "Cost of noise in memory", measures_of(grown), settings, {"gigabytes": grown})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
