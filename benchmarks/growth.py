"""How cost grows: time and memory of training against batch size, rows, sequence length and layers.

    python benchmarks/growth.py [--rounds 2] [--threads 2]

Every point is `scala-lab train` in a fresh process on made-up rows that all have the wanted length, with a random BERT
of the wanted depth: seconds and peak memory are what run.json says. Only one thing grows at a time. A slope is that of
a straight line through the points on logarithmic axes: 1 is in proportion, 0 is no growth. Memory includes what Python
and torch take before anything is trained.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from measures import Measure, write_result

WIDTH = 128
SPARE_ROWS = 300
"""A tenth of a file's rows is kept apart for evaluation."""
START = {"batch_size": 256, "rows": 1024, "length": 32, "layers": 3}
GROWING: dict[str, tuple[str, tuple[int, ...]]] = {
    "batch size": ("batch_size", (64, 256, 1024, 4096)),
    "training rows": ("rows", (1024, 4096, 16384)),
    "tokens of a row": ("length", (16, 32, 64, 128, 256)),
    "layers": ("layers", (1, 2, 4, 8, 16)),
}


@dataclass(frozen=True)
class Options:
    """How cost grows."""

    rounds: int = 2
    """Processes per point."""
    threads: int = 2
    """CPU threads."""


def save_encoder(folder: Path, layers: int) -> Path:
    """A random BERT with the embedded encoder's words."""
    from transformers import BertConfig, BertForSequenceClassification

    from scala_lab.models.loading import load_tokenizer

    tokenizer = load_tokenizer("embedded")
    tokenizer.model_max_length = 512
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_rows(path: Path, rows: int, words: int) -> Path:
    """Rows of two classes."""
    rng = random.Random(0)
    lines = ["text,label", *(f"{' '.join(rng.choices('abcdefgh', k=words))},{row % 2}" for row in range(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def run_point(folder: Path, point: dict[str, int], threads: int) -> dict[str, float]:
    """Seconds of an epoch and of a step, and peak bytes, of a run of its own process."""
    encoder, rows = folder / f"layers-{point['layers']}", folder / f"{point['rows']}-rows-of-{point['length']}.csv"
    if not encoder.exists():
        save_encoder(encoder, point["layers"])
    if not rows.exists():
        save_rows(rows, SPARE_ROWS + 5 * point["rows"] // 4, words=point["length"])  # special tokens make it longer
    with tempfile.TemporaryDirectory(dir=folder) as out:
        flags = ["--task", str(rows), "--text-columns", "text", "--label-column", "label", "--eval-samples", "16"]
        flags += ["--train-samples", str(point["rows"]), "--model", str(encoder), "--method", "lamb", "--epochs", "1"]
        flags += ["--threads", str(threads)]
        flags += ["--batch-size", str(point["batch_size"]), "--max-length", str(point["length"])]
        command = [sys.executable, "-m", "scala_lab", "train", *flags, "--out", f"{out}/run"]
        tokens = {"SCALA_LAB_CACHE": str(folder / "cache")}
        ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **tokens})
        if ended.returncode:
            raise RuntimeError(ended.stderr[-2000:])
        record = json.loads((Path(out) / "run" / "run.json").read_text())
    seconds = record["timing"]["train_seconds"]
    return {"epoch": seconds, "step": seconds / record["steps"], "bytes": record["peak_memory_bytes"]}


def points() -> dict[tuple[str, int], dict[str, int]]:
    """All settings, by what grows and how far; rows suffice for one whole batch."""
    found = {}
    for against, (name, values) in GROWING.items():
        for value in values:
            point = {**START, name: value}
            found[against, value] = {**point, "rows": max(point["rows"], point["batch_size"])}
    return found


def slope(x: list[float], y: list[float]) -> float:
    """Of a straight line through the points on logarithmic axes."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def curves(measured: dict[tuple[str, int], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """A curve of seconds and one of memory for everything that grows."""
    found = []
    for of, scale in (("seconds", 1.0), ("peak memory (GB)", 1e9)):
        for against, (_, values) in GROWING.items():
            key = "bytes" if scale > 1 else "epoch" if against == "training rows" else "step"
            y = [statistics.median(one[key] for one in measured[against, value]) / scale for value in values]
            x = list(map(float, values))
            what = of if scale > 1 else "seconds (step, or epoch of all rows)"
            found.append({"of": what, "against": against, "x": x, "y": y, "slope": slope(x, y)})
    return found


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/growth.json."""
    wanted = points()
    measured: dict[tuple[str, int], list[dict[str, float]]] = {key: [] for key in wanted}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for key in list(wanted)[:: 1 if number % 2 == 0 else -1]:
                measured[key].append(run_point(Path(folder), wanted[key], options.threads))
                one = measured[key][-1]
                print(f"  {key[0]} {key[1]:,}: {one['step']:.3g} s a step, {one['bytes'] / 1e9:.2f} GB", flush=True)
    drawn = curves(measured)
    measures = [
        Measure(
            f"slope of {'memory' if 'memory' in curve['of'] else 'time'} over {curve['against']}", "", curve["slope"]
        )
        for curve in drawn
    ]
    details = {f"{against} {value}": rounds for (against, value), rounds in measured.items()}
    settings = {**asdict(options), "width": WIDTH, "start": START}
    write_result("growth", "How cost grows", measures, settings, details, drawn)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
