"""Take two optimizer steps of a run, and print by how many bytes resident memory peaked above what it was before."""

from __future__ import annotations

import json
import sys

from our_side import OurSide

from scala_lab import RunSpec
from scala_lab.machine import peak_memory_bytes


def resident_bytes() -> int:
    """What the process holds now; where the system does not tell, the most it has held."""
    try:
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    except (OSError, StopIteration):
        return peak_memory_bytes()


if __name__ == "__main__":
    side = OurSide(RunSpec.of(**json.loads(sys.argv[1])))
    before = resident_bytes()
    for number in range(2):
        side.step(number)
    print(peak_memory_bytes() - before)
