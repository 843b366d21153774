"""The cores of this host, and how many threads and workers they have room for."""

from __future__ import annotations

import os
import re
import sys

from scala_lab.errors import UserError

MOST_WORKERS_PER_CORE = 4
"""More processes than this on a core do nothing but wait for each other."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def default_threads(workers: int = 1) -> int:
    """CPU threads of each of the workers of this host, where nobody asks for a number.

    OMP_NUM_THREADS decides, else the cores are shared evenly. As in OpenMP, a list of numbers means its first, and
    a value that holds anything but numbers above 0 is ignored.
    """
    numbers = os.environ.get("OMP_NUM_THREADS", "").split(",")
    if all(re.fullmatch(r"\s*\+?0*[1-9][0-9]*\s*", number) for number in numbers):
        return int(numbers[0])
    return max(1, usable_cores() // max(1, workers))


def check_crowd(workers: int) -> None:
    """Refuse to start more processes than the cores of this host can do anything with."""
    most = MOST_WORKERS_PER_CORE * usable_cores()
    if workers > most:
        raise UserError(
            f"--workers {workers} is too many for the {_cores()} of this host, which take up to {most}: "
            "with torchrun a run can have workers on several hosts"
        )


def warn_of_crowd(workers: int, threads: int) -> None:
    """Say on stderr that processes will wait for each other."""
    if workers > 1 and workers * threads > usable_cores():
        each = f" of {threads} threads" if threads > 1 else ""
        print(f"note: {workers} workers{each} share the {_cores()} of this host and take turns", file=sys.stderr)


def _cores() -> str:
    return f"{usable_cores()} core{'s' if usable_cores() > 1 else ''}"
