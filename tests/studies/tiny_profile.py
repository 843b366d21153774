"""A profile so small that a study's own cells run in seconds, and its cells computed without a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scala_lab.config import RunSpec
from scala_lab.study.api import frame_of
from scala_lab.study.profiles import EMBEDDED, CurvaturePlan, Profile
from scala_lab.sweep.store import Records, run_record
from scala_lab.training.run_dir import RunResult
from scala_lab.training.train import train
from tests.tiny import save_tiny_model, write_rows


def tiny_profile(folder: Path) -> Profile:
    """Embedded studies on a random encoder and a file of 96 rows."""
    model = save_tiny_model(folder / "encoder", dropout=0.1)
    rows = write_rows(folder / "rows.csv", 96)
    return replace(
        EMBEDDED,
        models=(str(model),),
        tasks=(str(rows),) * 4,
        pair=(str(rows), str(rows)),
        small_batch=8,
        large_batch=32,
        batch_sizes=(8, 32, 64),
        delays=(0.0, 3.0, 5.0),
        early_delay=3.0,
        late_delay=5.0,
        seeds=(0, 1),
        curvature=CurvaturePlan(samples=24, sets=2, flatness_samples=24, matched_loss=1.2),
        settings={
            "text_columns": ("text",),
            "label_column": "label",
            "epochs": 6,
            "threads": 1,
            "micro_batch": 16,
        },
    )


class TinyStore:
    """Trains and measures what cells need, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, RunResult] = {}
        self.measured: dict[str, dict] = {}

    def run(self, spec: RunSpec) -> RunResult:
        if spec.run_id not in self.runs:
            self.runs[spec.run_id] = train(spec, self.folder / spec.name)
        return self.runs[spec.run_id]

    def frame(self, cells):
        """What `analyse` gets."""
        for cell in cells:
            runs = [self.run(spec) for spec in cell.specs]
            if cell.specs != (cell.item,) and cell.item.id not in self.measured:
                self.measured[cell.item.id] = {"status": "finished", "result": cell.item.compute(runs)}
        records = {key: run_record(run) for key, run in self.runs.items()}
        return frame_of(cells, Records(records, self.measured))
