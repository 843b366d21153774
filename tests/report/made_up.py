"""Records as a sweep would leave them, without training: results drawn from the run's id."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from scala_lab.config import RunSpec
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.store import Records

SPLITS = {"dev": 0.0, "heldout": -0.01, "tuning": 0.01}
"""Evaluation splits, and how far their accuracy is from the one on dev rows."""
LN2 = math.log(2)


def made_up_records(cells: Iterable[Cell]) -> Records:
    """A finished run for every cell; measurements are left out."""
    records = Records()
    for cell in cells:
        for spec in cell.specs:
            records.runs[spec.run_id] = made_up_run(spec)
        assert not isinstance(cell.item, Measurement)
    return records


def made_up_run(spec: RunSpec, status: str = "finished") -> dict:
    """What a report keeps of a run."""
    resolved = spec.resolved()
    accuracy = 0.8 + random.Random(spec.run_id).random() / 10
    metrics = {split: {"accuracy": accuracy + shift} for split, shift in SPLITS.items()}
    return {
        "id": spec.run_id,
        "name": spec.name,
        "status": status,
        "spec": resolved.to_dict(),
        "metrics": metrics if status == "finished" else {},
        "best": {"epoch": 2.0, "metrics": metrics},
        "learning_rate": resolved.optim.lr or 0.01,
        "steps": 48,
        "steps_done": 48,
        "losses": {"train": 0.3 * LN2},
        "chance": {"loss": LN2, "score": 0.5},
        "samples": {"train": 4096, **dict.fromkeys(SPLITS, 1024)},
        "parameters": 700_000,
        "counts": {"noised_samples": 0, "skipped_noise": 0},
        "timing": {"train_seconds": 3.5, "samples_per_second": 7000.0},
        "environment": {
            "scala_lab": "0.1.0",
            "python": "3.11.7",
            "packages": {"torch": "2.13.0"},
            "host": "a",
            "cores": 2,
        },
        "epochs": [],
    }
