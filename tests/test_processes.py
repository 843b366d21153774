"""How a process ends that another one started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from scala_lab.machine import outlast_sigterm

def has_more_to_record():
    print("asked", flush=True)
    return {more_to_record}

outlast_sigterm(has_more_to_record, seconds=600)
print("ready", flush=True)
sys.stdin.readline()
print("noted", flush=True)
"""


@pytest.mark.parametrize("more_to_record", [True, False])
def test_sigterm_waits_only_for_what_a_process_still_has_to_note(more_to_record):
    process = subprocess.Popen(
        [sys.executable, "-c", CODE.format(more_to_record=more_to_record)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    if not more_to_record:
        assert process.wait(timeout=120) == 128 + signal.SIGTERM, "though its main thread waits for a line"
        return
    out, _ = process.communicate("go on\n", timeout=120)
    assert out == "noted\n"
    assert process.returncode == 0
