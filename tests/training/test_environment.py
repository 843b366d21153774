from __future__ import annotations

import subprocess
import sys


def test_peak_memory_is_this_process_own():
    """On Linux getrusage counts the memory of the process that started this one."""
    child = "from scala_lab.training.environment import peak_memory_bytes; print(peak_memory_bytes())"
    parent = "import subprocess, sys; held = b'x' * 10**9; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    answer = subprocess.run([sys.executable, "-c", parent, child], check=True, capture_output=True, text=True)
    assert 10**7 < int(answer.stdout) < 9 * 10**8
