"""The task's own loss, one number per sample."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from scala_lab.divergence import squared_difference, symmetric_kl


def task_loss(logits_BC: Tensor, labels_B: Tensor, regression: bool) -> Tensor:
    """Cross-entropy, or the squared error (z - y)^2 for regression; one value per sample."""
    if regression:
        return (logits_BC.squeeze(-1) - labels_B.to(logits_BC.dtype)).square()
    return functional.cross_entropy(logits_BC, labels_B, reduction="none")


def correct_answers(logits_BC: Tensor, labels_B: Tensor, regression: bool) -> Tensor:
    """How many samples have their label on top; 0 for regression."""
    if regression:
        return logits_BC.new_zeros(())
    return (logits_BC.argmax(-1) == labels_B).sum()


def output_divergence(gamma_BC: Tensor, logits_BC: Tensor, regression: bool) -> Tensor:
    """r: how far two outputs lie apart, one value per sample.

    Symmetric KL of the predicted distributions, or the squared difference for regression.
    """
    return (squared_difference if regression else symmetric_kl)(gamma_BC, logits_BC)
