"""The version, and where the package is: of use to whoever starts other processes of it."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"
PACKAGE_PARENT = Path(__file__).parent.parent
"""The folder that `import scala_lab` finds it in."""
