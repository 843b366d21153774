"""Divergences of two predictions, per sample."""

from __future__ import annotations

import torch
from torch import Tensor


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


def squared_difference(outputs_a: Tensor, outputs_b: Tensor) -> Tensor:
    """Return the squared difference of two regression outputs of shape (samples,) or (samples, 1), per sample."""
    squares = (_precise(outputs_a) - _precise(outputs_b)).square()
    return squares.flatten(start_dim=1).sum(dim=1) if squares.ndim > 1 else squares


def _precise(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
