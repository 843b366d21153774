"""The loop, its workers, checkpoints and evaluation."""

from __future__ import annotations

from scala_lab.training.api import train

__all__ = ["train"]
