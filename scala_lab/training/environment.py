"""What a run's numbers were made with: versions, machine, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from scala_lab.version import PACKAGE_PARENT, VERSION

_PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "safetensors", "numpy", "scipy", "scikit-learn")


def describe_environment() -> dict[str, Any]:
    """A record for run.json."""
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
    """The most memory this process has held so far: on the GPU where there is one, else resident."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:  # Linux's getrusage would count the memory of the process that started this one
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
    """The commit of the source tree, if the package runs from one."""
    if not (PACKAGE_PARENT / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=PACKAGE_PARENT, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
