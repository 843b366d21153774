"""Several workers measure together, each with its share of the rows."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.training.launch import run_workers
from scala_lab.training.worker import work

if TYPE_CHECKING:
    from scala_lab.commands.sharpness_measure import Findings
    from scala_lab.commands.sharpness_options import Sharpness


def measure_together(options: Sharpness) -> Findings:
    """Start the workers and return what the first one found; all find the same."""
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as folder:
        Path(folder, "options").write_bytes(pickle.dumps(options))
        run_workers("scala_lab.commands.sharpness_worker", {"folder": folder}, options.spec.machine)
        return pickle.loads(Path(folder, "findings").read_bytes())


def _measure(values: dict[str, Any]) -> None:
    from scala_lab.commands.sharpness_measure import measure_all

    folder = Path(values["folder"])
    findings = measure_all(pickle.loads((folder / "options").read_bytes()))
    if os.environ["RANK"] == "0":
        (folder / "findings").write_bytes(pickle.dumps(findings))


if __name__ == "__main__":
    work(sys.argv[1], _measure)
