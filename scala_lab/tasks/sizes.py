"""How many rows the tasks have, for plans that are made without loading them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from scala_lab.tasks.registry import TASKS

GLUE_ROWS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "mnli": (392_702, 9_815 + 9_832),
        "qnli": (104_743, 5_463),
        "qqp": (363_846, 40_430),  # without the malformed rows of the first release
        "sst2": (67_349, 872),
        "stsb": (5_749, 1_500),
        "mrpc": (3_668, 408),
        "rte": (2_490, 277),
        "cola": (8_551, 1_043),
    }
)
"""Rows of the published train split and of all its evaluation splits together."""


def published_rows(task: str) -> tuple[int, int] | None:
    """Train and evaluation rows of a GLUE task or an embedded one; None for a file of the user's own."""
    if task in TASKS and TASKS[task].embedded:
        from scala_lab.tasks.embedded.generation import DEV_ROWS, TRAIN_ROWS

        return TRAIN_ROWS, DEV_ROWS
    return GLUE_ROWS.get(task)
