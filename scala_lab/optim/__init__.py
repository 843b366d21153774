"""Optimizers with group-wise learning rates (Lamb, Ngd), and how a spec becomes an optimizer with its schedule."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scala_lab.optim.lamb import Lamb
    from scala_lab.optim.ngd import Ngd

__all__ = ["Lamb", "Ngd"]


def __getattr__(name: str) -> Any:
    """Import an optimizer, and torch with it, on first use."""
    if name in __all__:
        return getattr(import_module(f"scala_lab.optim.{name.lower()}"), name)
    raise AttributeError(f"module 'scala_lab.optim' has no attribute {name!r}")
