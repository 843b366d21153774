"""The version of the package, and the folder that it is imported from."""

from pathlib import Path

VERSION = "0.1.0"

PACKAGE_PARENT = Path(__file__).parent.parent  # the folder from which `import scala_lab` works
