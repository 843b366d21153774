"""Optimizers with group-wise rates, their schedules, and how a spec becomes one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scala_lab.optim.lamb import Lamb
    from scala_lab.optim.ngd import Ngd

__all__ = ["Lamb", "Ngd"]


def __getattr__(name: str) -> Any:
    """Load the optimizers, and torch with them, on first use."""
    if name == "Lamb":
        from scala_lab.optim.lamb import Lamb

        return Lamb
    if name == "Ngd":
        from scala_lab.optim.ngd import Ngd

        return Ngd
    raise AttributeError(f"module 'scala_lab.optim' has no attribute {name!r}")
