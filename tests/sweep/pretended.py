"""Sweeps whose runs were never trained: records with made-up scores in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.files import write_json
from scala_lab.sweep.grid import SweepFolder


def pretend(sweep: SweepFolder, ending: Callable[[RunSpec], dict[str, Any]]) -> None:
    """Declare a sweep, and record each run with what `ending` says of it: metrics by split, or a status and an error.

    A run of which it says nothing was not begun.
    """
    sweep.write()
    for cell in sweep.cells():
        spec = cell.item.resolved()
        said = ending(spec)
        if not said:
            continue
        record = {
            **{"id": spec.run_id, "name": spec.name, "spec": spec.to_dict(), "fingerprints": {}, "skipped_rows": {}},
            **{"status": "finished", "metrics": {}, "losses": {}, "steps": 9, "steps_done": 9, "parameters": 100},
            **{"learning_rate": spec.optim.lr, "samples": {"train": 48, "dev": 16}, "environment": {"version": "1"}},
            "timing": {
                **{"train_seconds": 2.0, "evaluation_seconds": 1.0, "samples_per_second": 3.0},
                **{"tokens_per_second": 4.0, "phases": {}},
            },
        }
        write_json(sweep.store.record_file(spec), record | said)
