"""Losses of predictions and divergences of two predictions, per sample."""

import torch
from torch import Tensor
from torch.nn import functional


def symmetric_kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    r"""Return the symmetric Kullback-Leibler divergence of two class distributions, per sample.

        KL(p||q) + KL(q||p) = sum over classes of (p - q) * (log p - log q)

    from log-softmax in float32 (float64 stays float64), so that it is finite whenever its true value is: a
    probability that underflows still has a finite logarithm, and a class both logits rule out (-inf) adds 0.
    Logits have shape (..., classes), the result has shape (...) and is at least 0 up to rounding.
    """
    log_p = torch.log_softmax(_precise(logits_p), dim=-1)
    log_q = torch.log_softmax(_precise(logits_q), dim=-1)
    ruled_out = torch.isneginf(log_p) & torch.isneginf(log_q)
    gap = log_p.masked_fill(ruled_out, 0.0) - log_q.masked_fill(ruled_out, 0.0)
    return ((log_p.exp() - log_q.exp()) * gap).sum(dim=-1)


def task_loss(logits_BC: Tensor, labels_B: Tensor, regression: bool, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each sample, or its squared error (z - y)^2 for regression.

    With label smoothing every class has a share smoothing / C of the label, the true one what is left.
    """
    if regression:
        return (logits_BC.squeeze(-1) - labels_B.to(logits_BC.dtype)).square()
    return functional.cross_entropy(logits_BC, labels_B, reduction="none", label_smoothing=smoothing)


def correct_answers(logits_BC: Tensor, labels_B: Tensor, regression: bool) -> Tensor:
    """Count the samples whose label has the largest logit; 0 for regression."""
    return logits_BC.new_zeros(()) if regression else (logits_BC.argmax(-1) == labels_B).sum()


def output_divergence(gamma_BC: Tensor, logits_BC: Tensor, regression: bool) -> Tensor:
    """Return r of each sample: symmetric KL of the two predictions, or their squared difference for regression."""
    if regression:
        return (_precise(gamma_BC) - _precise(logits_BC)).square().sum(-1)
    return symmetric_kl(gamma_BC, logits_BC)


def _precise(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
