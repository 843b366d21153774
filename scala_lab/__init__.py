"""scala_lab: ScaLA, large-batch adaptation of pretrained transformers, and a suite to study it.

Example:
    >>> from scala_lab import RunSpec, train
    >>> result = train(RunSpec.of(task="mini-sst2", method="scala"), out="runs/first")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scala_lab.processes import VERSION

if TYPE_CHECKING:
    from scala_lab.config import RunSpec
    from scala_lab.training import train

__version__ = VERSION
__all__ = ["RunSpec", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that `import scala_lab` costs nothing."""
    if name == "RunSpec":
        from scala_lab.config import RunSpec

        return RunSpec
    if name == "train":
        from scala_lab.training import train

        return train
    raise AttributeError(f"module 'scala_lab' has no attribute {name!r}")
