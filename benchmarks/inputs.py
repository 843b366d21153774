"""What the benchmarks run on when nothing else is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("SCALA_LAB_SHARED", Path(__file__).parents[2] / "shared"))


def sst2(data_dir: Path | None, model: str | None) -> dict[str, Any]:
    """Settings of a run on sentiment: as given, else GLUE's SST-2 and MiniLM-L3 where they are, else embedded."""
    if data_dir is None and model is None and (SHARED / "data" / "glue").is_dir():
        data_dir, model = SHARED / "data" / "glue", str(SHARED / "models" / "paraphrase-MiniLM-L3-v2")
    data = {"task": "sst2", "data_dir": data_dir} if data_dir else {"task": "mini-sst2"}
    return {**data, "model": model or "embedded"}
