"""What the benchmarks run on when nothing else is asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("SCALA_LAB_SHARED", Path(__file__).parents[2] / "shared"))


@dataclass(frozen=True)
class Inputs:
    """Where data and encoder come from."""

    data_dir: Path | None = None
    """GLUE folder; default one beside the repository, else the embedded tasks."""
    model: str | None = None
    """Folder or name of the encoder; default MiniLM-L3 beside the repository, else the embedded encoder."""

    def of(self, task: str) -> dict[str, Any]:
        """Settings of a run on a GLUE task: as given, else what lies beside the repository, else embedded."""
        data_dir, model = self.data_dir, self.model
        if data_dir is None and model is None and (SHARED / "data" / "glue").is_dir():
            data_dir, model = SHARED / "data" / "glue", str(SHARED / "models" / "paraphrase-MiniLM-L3-v2")
        data = {"task": task, "data_dir": data_dir} if data_dir else {"task": f"mini-{task}"}
        return {**data, "model": model or "embedded"}


def sst2(data_dir: Path | None, model: str | None) -> dict[str, Any]:
    """Settings of a run on sentiment."""
    return Inputs(data_dir, model).of("sst2")
