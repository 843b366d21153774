"""Wall-clock times that the paper reports, as numbers to fit a model of time to.

Seconds of whole runs of 6 epochs on V100 GPUs, 16 to a host, from its Tables 1 and 2. `baseline 1x1` is one GPU at
B=32, `baseline 2x16` 32 GPUs at B=32; the others are 32 GPUs at B=1024.
"""

from __future__ import annotations

TASKS = ("MNLI", "QNLI", "QQP", "SST-2")
SMALL_STEPS = (73632, 19644, 68226, 12630)
LARGE_STEPS = (2301, 615, 2133, 396)
LENGTHS = (39.6, 49.1, 30.6, 13.4)
"""Mean tokens of a training row, by BERT's uncased word pieces."""
PARAMETERS = {"BERT-base": 110e6, "RoBERTa-large": 355e6}

PLACES: dict[str, tuple[int, int]] = {
    "baseline 1x1": (1, 32),
    "baseline 2x16": (32, 32),
    "baseline B=1K": (32, 1024),
    "LAMB B=1K": (32, 1024),
    "ScaLA B=1K": (32, 1024),
}
"""Workers and batch size of each row."""

SECONDS: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "BERT-base": {
        "baseline 1x1": (19635, 5535, 16494, 2736),
        "baseline 2x16": (8848, 2408, 11311, 1494),
        "baseline B=1K": (1148, 349, 2892, 134),
        "LAMB B=1K": (1180, 359, 2978, 139),
        "ScaLA B=1K": (1323, 432, 4229, 151),
    },
    "RoBERTa-large": {
        "baseline 1x1": (43090, 14188, 40945, 4940),
        "baseline 2x16": (18114, 4842, 16614, 3072),
        "baseline B=1K": (2514, 936, 1874, 317),
        "LAMB B=1K": (2646, 973, 1998, 324),
        "ScaLA B=1K": (3363, 1168, 2404, 401),
    },
}
"""By model and row, in the order of `TASKS`."""


def step_seconds(model: str, row: str) -> tuple[float, ...]:
    """Seconds of one step on each task."""
    steps = SMALL_STEPS if PLACES[row][1] == 32 else LARGE_STEPS
    return tuple(seconds / count for seconds, count in zip(SECONDS[model][row], steps, strict=True))
