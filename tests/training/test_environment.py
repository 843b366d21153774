from __future__ import annotations

import sys

from tests.processes import run


def test_peak_memory_is_this_process_own():
    """On Linux getrusage counts the memory of the process that started this one."""
    child = "from scala_lab.machine import peak_memory_bytes; print(peak_memory_bytes())"
    parent = "import subprocess, sys; held = b'x' * 10**9; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    assert 10**7 < int(run([sys.executable, "-c", parent, child])) < 9 * 10**8
