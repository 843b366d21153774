"""Cells per hour: a grid of 28 runs through our sweep, beside the same runs one after another in transformers.Trainer.

    python benchmarks/grid.py [--rows 8192] [--epochs 2] [--every 4]

7 learning rates x 4 batch sizes of plain AdamW training on the embedded task and encoder, with the same rows, epochs
and batch sizes, and an evaluation at the end (ours also has one after every epoch, and writes a checkpoint and a
record). Ours are two processes of one thread, from an empty store and with the start of the processes; the peer is one
process of two threads that is already warm. Each side has the micro-batch size that is fastest for it, found first. Of
the peer's cells only every fourth is run, one for each rate, and each batch size's mean stands for all of its cells:
the rate does not change the time of a run. Half of the peer's cells are run before our sweep and half after it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from measures import compared, write_result
from our_side import OurSide
from peers import add_peers
from turns import seconds_of

from scala_lab import RunSpec

RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
BATCH_SIZES = (32, 128, 512, 1024)


@dataclass(frozen=True)
class Options:
    """A grid of 28 runs."""

    rows: int = 8192
    """Training rows of a run."""
    eval_rows: int = 512
    """Evaluation rows of a run."""
    epochs: int = 2
    """Epochs of a run."""
    every: int = 4
    """Run every n-th cell of the peer."""
    micro_batches: tuple[int, ...] = (32, 64, 128, 256)
    """Micro-batch sizes tried for each side."""


def grid(options: Options, micro_batch: int = 64) -> list[RunSpec]:
    """All cells."""
    values = {"method": "plain", "train_samples": options.rows, "eval_samples": options.eval_rows}
    return [
        RunSpec.of(**values, epochs=options.epochs, lr=rate, batch_size=size, micro_batch=micro_batch, threads=1)
        for rate in RATES
        for size in BATCH_SIZES
    ]


def sample(specs: list[RunSpec], every: int) -> list[RunSpec]:
    """Every n-th cell, one further on in each row of the grid, so that all batch sizes have their turn."""
    return [spec for place, spec in enumerate(specs) if (place + place // len(BATCH_SIZES)) % every == 0]


def our_sweep(specs: list[RunSpec]) -> tuple[float, dict[str, float]]:
    """Seconds of the whole sweep, and the accuracy of every cell."""
    from scala_lab.sweep.cells import Cell
    from scala_lab.sweep.engine import run_sweep
    from scala_lab.sweep.local import LocalPool
    from scala_lab.sweep.store import RunStore

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        records = run_sweep([Cell(spec) for spec in specs], RunStore(Path(folder) / "store"), LocalPool(2))
        seconds = time.perf_counter() - started
        ended = [records.runs[spec.run_id] for spec in specs]
    if any(record["status"] != "finished" for record in ended):
        raise RuntimeError("a cell did not run to its end")
    return seconds, {
        _name(spec): record["metrics"]["dev"]["accuracy"] for spec, record in zip(specs, ended, strict=True)
    }


def peer_seconds(specs: list[RunSpec], micro_batch: int) -> list[float]:
    """Seconds of each cell: rows into a Dataset, weights from disk, training, evaluation."""
    from peers.trainer import TrainerSide

    seconds = []
    for spec in specs:
        started = time.perf_counter()
        TrainerSide(spec, micro_batch).whole_run(spec.optim.lr or 0.0)
        seconds.append(time.perf_counter() - started)
        print(f"  transformers.Trainer, {_name(spec)}: {seconds[-1]:.1f} s", flush=True)
    return seconds


def scaled_up(cells: list[RunSpec], seconds: list[float], specs: list[RunSpec]) -> float:
    """Seconds of the whole grid, from the mean over the cells of each batch size that were run."""
    by_size: dict[int, list[float]] = {}
    for spec, taken in zip(cells, seconds, strict=True):
        by_size.setdefault(spec.batches.batch_size, []).append(taken)
    return sum(statistics.mean(by_size[spec.batches.batch_size]) for spec in specs)


def peer_steps(spec: RunSpec, micro_batch: int) -> list[float]:
    """Seconds of some steps of the peer."""
    from peers.trainer import TrainerSide

    return TrainerSide(spec, micro_batch).steps(4)


def our_steps(spec: RunSpec, micro_batch: int) -> list[float]:
    """Seconds of some steps of ours, on one thread."""
    side = OurSide(spec.override(micro_batch=micro_batch))
    return [seconds_of(partial(side.step, step)) for step in range(4)]


def fastest(
    steps: Callable[[RunSpec, int], list[float]], sizes: tuple[int, ...], spec: RunSpec
) -> tuple[int, dict[int, float]]:
    """The micro-batch size whose quickest step is quickest, and all that were tried."""
    tried = {size: min(steps(spec, size)) for size in sizes}
    return min(tried, key=lambda size: tried[size]), tried


def _name(spec: RunSpec) -> str:
    return f"lr={spec.optim.lr:g} B={spec.batches.batch_size}"


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/grid.json."""
    add_peers()
    import torch

    our_micro_batch, our_tried = fastest(our_steps, options.micro_batches, grid(options)[-1])
    specs = grid(options, our_micro_batch)
    torch.set_num_threads(2)
    micro_batch, tried = fastest(peer_steps, options.micro_batches, specs[-1])
    peer_cells = sample(specs, options.every)
    half = len(peer_cells) // 2
    theirs = peer_seconds(peer_cells[:half], micro_batch)
    ours, accuracies = our_sweep(specs)
    print(f"  our sweep of {len(specs)} cells: {ours:.1f} s", flush=True)
    theirs += peer_seconds(peer_cells[half:], micro_batch)
    whole = scaled_up(peer_cells, theirs, specs)
    measure = compared(
        f"grid of {len(specs)} runs",
        [3600 * len(specs) / ours],
        [3600 * len(specs) / whole],
        "cells/hour",
        "ours over peer",
        "transformers.Trainer",
        goal=3.0,
    )
    details: dict[str, Any] = {
        "our_seconds": ours,
        "our_cells": len(specs),
        "our_micro_batch": our_micro_batch,
        "our_step_seconds_by_micro_batch": our_tried,
        "our_accuracy": accuracies,
        "peer_seconds_of_all_cells": whole,
        "peer_seconds": dict(zip(map(_name, peer_cells), theirs, strict=True)),
        "peer_micro_batch": micro_batch,
        "peer_step_seconds_by_micro_batch": tried,
    }
    write_result("grid", "Sweeps", [measure], asdict(options), details)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
