"""`python -m scala_lab` is `scala-lab`; torchrun starts workers this way."""

import os
import sys

from scala_lab.cli import main
from scala_lab.machine import end_process

if __name__ == "__main__":
    code = main()
    if "RANK" in os.environ:
        end_process(code)
    sys.exit(code)
