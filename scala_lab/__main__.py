"""`python -m scala_lab` is `scala-lab`; torchrun starts workers this way."""

from __future__ import annotations

import sys

from scala_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
