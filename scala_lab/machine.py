"""The machine: how many threads and workers its cores take, and the environment that a run's record describes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from scala_lab.errors import UserError
from scala_lab.processes import PACKAGE_PARENT, VERSION

MAX_WORKERS_PER_CORE = 4
"""More processes than this on a core only wait for each other."""

_PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "safetensors", "numpy", "scipy", "scikit-learn")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def default_threads(workers: int = 1) -> int:
    """Return the CPU threads per worker of this host by default: OMP_NUM_THREADS, else an even share of the cores.

    As in OpenMP, a list of numbers means its first, and a value with anything but numbers above 0 is ignored.
    """
    numbers = os.environ.get("OMP_NUM_THREADS", "").split(",")
    if all(re.fullmatch(r"\s*\+?0*[1-9][0-9]*\s*", number) for number in numbers):
        return int(numbers[0])
    return max(1, usable_cores() // max(1, workers))


def check_crowd(workers: int) -> None:
    """Refuse to start more workers than `MAX_WORKERS_PER_CORE` allows."""
    max_workers = MAX_WORKERS_PER_CORE * usable_cores()
    if workers > max_workers:
        raise UserError(
            f"--workers {workers} is too many for the {_cores()} of this host, which take up to {max_workers}: "
            "with torchrun a run can have workers on several hosts"
        )


def warn_of_crowd(workers: int, threads: int) -> None:
    """Warn on stderr if workers have to share cores."""
    if workers > 1 and workers * threads > usable_cores():
        of_threads = f" of {threads} threads" if threads > 1 else ""
        print(f"note: {workers} workers{of_threads} share the {_cores()} of this host and take turns", file=sys.stderr)


def _cores() -> str:
    return f"{usable_cores()} core{'s' if usable_cores() > 1 else ''}"


def describe_environment() -> dict[str, Any]:
    """Return versions, machine and commit, for run.json."""
    import torch

    return {
        "scala_lab": VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "host": platform.node(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": " ".join(sys.argv),
    }


def peak_memory_bytes() -> int:
    """Return the peak memory of this process so far: on the GPU where there is one, else resident."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:  # on Linux getrusage would count the memory of the parent process too
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the source tree, if the package runs from one."""
    if not (PACKAGE_PARENT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=PACKAGE_PARENT, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
