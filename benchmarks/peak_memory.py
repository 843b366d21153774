"""Peak memory of a command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_RUN_AND_REPORT = """
import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.stderr.write(ended.stderr[-2000:])
sys.exit(ended.returncode)
"""


def peak_memory(command: Sequence[str], fine: tuple[int, ...] = (0,)) -> int:
    """Peak resident bytes of a command.

    It is started from a small process, not from this one: on Linux a new process counts the memory of the one that
    started it as its own peak.

    Args:
        command: Program and arguments.
        fine: Exit codes that are no failure.
    """
    ended = subprocess.run([sys.executable, "-c", _RUN_AND_REPORT, *command], capture_output=True, text=True)
    if ended.returncode not in fine:
        raise RuntimeError(ended.stderr)
    return int(ended.stdout) * (1 if sys.platform == "darwin" else 1024)
