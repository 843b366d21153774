"""The machine: its cores, the environment that a run's record describes, and how a process ends with its launcher."""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scala_lab.errors import UserError
from scala_lab.version import PACKAGE_PARENT, VERSION

if TYPE_CHECKING:
    import torch


LAUNCHER = "SCALA_LAB_LAUNCHER"
"""Environment variable with the launcher's process id, for processes that may start after it has ended."""

_STARTED_BY = os.getppid()


def started_by_launcher() -> bool:
    """Whether torchrun, or our own launcher, started this process as one worker of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launched_workers(workers: int) -> int:
    """Return the number of workers: that of torchrun, if `workers` is the default 1 and torchrun started this one."""
    return int(os.environ["WORLD_SIZE"]) if workers == 1 and started_by_launcher() else workers


def pick_device(name: str) -> torch.device:
    """Return the device that auto, cpu or cuda means here."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no CUDA device that torch can use")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def orphaned() -> bool:
    """Whether the process that started this one is gone."""
    return os.getppid() != _STARTED_BY


def end_with_launcher() -> None:
    """End this process as soon as the one that started it is gone, even by kill -9."""
    launcher = int(os.environ.pop(LAUNCHER, os.getppid()))  # removed: it is not the launcher of this one's children

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()


def outlast_sigterm(has_more_to_record: Callable[[], bool], seconds: float = 10.0) -> None:
    """Delay the end by SIGTERM by some seconds if this process still has something to record.

    torchrun sends SIGTERM to all workers as soon as one has failed; a moment later the first worker notices its broken
    connection and records which one. A thread waits for the signal, because the main thread may be in a library call
    that keeps Python's handlers from running.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass
        if has_more_to_record():
            time.sleep(seconds)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="sigterm-watch", daemon=True).start()


def end_process(code: int) -> NoReturn:
    """End a process whose work is done, without the interpreter's finalisation.

    Native threads of libraries (Arrow, gloo, tokenizers) sometimes abort the process while the interpreter shuts down,
    so that finished and saved work would count as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def child_pythonpath() -> str:
    """Return a PYTHONPATH with which another process of this interpreter finds every module that this one finds."""
    entries = (entry or os.getcwd() for entry in sys.path)
    own = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))


MAX_WORKERS_PER_CORE = 4
_PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "safetensors", "numpy", "scipy", "scikit-learn")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def default_threads(workers: int = 1) -> int:
    """Return OMP_NUM_THREADS as OpenMP reads it (first of a list, ignored if malformed), else a share of the cores."""
    numbers = os.environ.get("OMP_NUM_THREADS", "").split(",")
    if all(re.fullmatch(r"\s*\+?0*[1-9][0-9]*\s*", number) for number in numbers):
        return int(numbers[0])
    return max(1, usable_cores() // max(1, workers))


def check_crowd(workers: int) -> None:
    """Refuse to start more workers than `MAX_WORKERS_PER_CORE` allows."""
    limit = MAX_WORKERS_PER_CORE * usable_cores()
    if workers > limit:
        crowd = f"{workers} is too many for the {_cores()} of this host, which take up to {limit}"
        raise UserError(f"--workers {crowd}: with torchrun a run can have workers on several hosts")


def warn_of_crowded_cores(device: str, workers: int, threads: int) -> None:
    """Warn on stderr if the workers that we started have to share cores; torchrun's may be on several hosts."""
    ours = device == "cpu" and "TORCHELASTIC_RUN_ID" not in os.environ
    if ours and workers > 1 and workers * threads > usable_cores():
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
        "packages": {name: package_version(name) for name in _PACKAGES},
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
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is unknown."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    if not (PACKAGE_PARENT / ".git").exists():  # not run from a source tree
        return None
    command = ["git", "-C", str(PACKAGE_PARENT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
