"""scala_lab: ScaLA, large-batch adaptation of pretrained transformers, and a suite to study it.

- Runs: `scala_lab.RunSpec`, `scala_lab.train`
- Grids of runs: `scala_lab.run_grid`; runs of any folder as a DataFrame: `scala_lab.load_runs`
- Optimizers: `scala_lab.optim.Lamb`, `scala_lab.optim.Ngd`
- Divergence of two predictions: `scala_lab.divergence.symmetric_kl`
- Curvature: `scala_lab.curvature.HessianOperator`, `scala_lab.curvature.top_eigenpairs`

A first run, in a few seconds and without any download:

    >>> import tempfile
    >>> from scala_lab import RunSpec, train
    >>> spec = RunSpec.of(task="mini-sst2", method="scala", delay=0, train_samples=64, eval_samples=64, epochs=1)
    >>> result = train(spec, out=tempfile.mkdtemp())
    >>> result.status, sorted(result.metrics)
    ('finished', ['dev'])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from scala_lab.version import VERSION

if TYPE_CHECKING:
    from scala_lab.config import RunSpec
    from scala_lab.sweep.frame import load_runs, run_grid
    from scala_lab.training.train import train

__version__ = VERSION
__all__ = ["RunSpec", "__version__", "load_runs", "run_grid", "train"]

_MODULES = {
    "RunSpec": "scala_lab.config",
    "load_runs": "scala_lab.sweep.frame",
    "run_grid": "scala_lab.sweep.frame",
    "train": "scala_lab.training.train",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `import scala_lab` costs nothing."""
    if name not in _MODULES:
        raise AttributeError(f"module 'scala_lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
