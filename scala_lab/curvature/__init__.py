"""How sharp the loss of a classifier is: its Hessian as an operator, eigenvalues, trace, density and slices.

Example:
    >>> import torch
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from scala_lab.curvature import HessianOperator, top_eigenpairs
    >>> sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 16}
    >>> model = BertForSequenceClassification(BertConfig(num_attention_heads=2, **sizes)).double()
    >>> ids = torch.arange(1, 19).view(3, 6)
    >>> batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 1])}]
    >>> op = HessianOperator(model, batches)
    >>> result = top_eigenpairs(op, k=2, tol=1e-6)
    >>> result.converged
    True
    >>> value, vector = float(result.eigenvalues[0]), result.eigenvectors[0]
    >>> torch.allclose(op @ vector, value * vector, atol=1e-5)
    True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scala_lab.curvature.checkpoint import SampleOptions, load_run, load_with_samples
    from scala_lab.curvature.eigensolvers import EigenResult, top_eigenpairs
    from scala_lab.curvature.landscape import (
        eigenvector_directions,
        filter_normalised,
        line_between,
        slice_1d,
        slice_2d,
    )
    from scala_lab.curvature.operator import HessianOperator
    from scala_lab.curvature.spectrum import layer_eigenvalues, spectral_density, trace

__all__ = [  # noqa: RUF022 - grouped as in _MODULES
    "HessianOperator",
    "EigenResult",
    "top_eigenpairs",
    "layer_eigenvalues",
    "spectral_density",
    "trace",
    "SampleOptions",
    "load_run",
    "load_with_samples",
    "eigenvector_directions",
    "filter_normalised",
    "line_between",
    "slice_1d",
    "slice_2d",
]

_MODULES = ("operator", "eigensolvers", "spectrum", "checkpoint", "landscape")


def __getattr__(name: str) -> Any:
    """Load a public name on first use: each module imports only those before it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    return next(getattr(module, name) for module in modules if hasattr(module, name))
