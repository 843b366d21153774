"""The loop, its workers, checkpoints and evaluation."""

from __future__ import annotations

from scala_lab.training.train import train

__all__ = ["train"]
