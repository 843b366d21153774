"""A sweep in a process of its own, to be killed: `python -m tests.sweep.sweeping MODEL ROWS STORE`."""

from __future__ import annotations

import sys
from pathlib import Path

from scala_lab.machine import end_process
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.engine import run_sweep
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.store import RunStore
from tests.sweep import measures
from tests.sweep.measures import tiny_spec

STEPS = 24
"""Of each run: 2 epochs of 48 rows in batches of 4."""


def cells(model: Path, rows: Path) -> list[Cell]:
    """Runs of which some branch off others, one has two workers and one diverges, and measurements."""
    small = {"batch_size": 4, "micro_batch": 4}
    runs = [tiny_spec(model, rows, **small), tiny_spec(model, rows, **small, workers=2)]
    runs.append(tiny_spec(model, rows, **small, method="plain", lr=1e30))
    runs += [tiny_spec(model, rows, **small, method="lamb"), tiny_spec(model, rows, **small, method="lamb", workers=2)]
    runs.append(tiny_spec(model, rows, **small, method="two-draws", delay=1.5))
    measured = [Measurement(measures.weight_sum, (run,)) for run in runs[:3]]
    timed = Measurement(measures.random_numbers, (), alone=True)
    return [Cell(item) for item in (*runs, *measured, timed)]


if __name__ == "__main__":
    model, rows, store = map(Path, sys.argv[1:])
    # Every step is saved, so that wherever the sweep is cut off a run goes on from the step before.
    run_sweep(cells(model, rows), RunStore(store), LocalPool(2), save_every=0.0)
    end_process(0)
