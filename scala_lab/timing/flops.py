"""Floating-point operations of a model's forward pass, and how many a machine does per second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


MATRIX = 1024
"""Width of the matrices that a machine's rate is measured with: large enough that nothing but arithmetic counts."""


@dataclass(frozen=True)
class ForwardFlops:
    """Floating-point operations of a forward pass over a row of T tokens, an addition and a product counted as two.

        flops(T) = per_row + per_token * T + per_square * T^2

    Linear layers give the first two, attention the third: q k^T and its product with v take 2 T^2 d each, in every
    layer. Embeddings, normalisation, activations and padding are not counted: it is the model's arithmetic, not what
    an implementation makes of it.
    """

    per_row: float
    per_token: float
    per_square: float

    def of(self, lengths: np.ndarray) -> float:
        """Operations for rows of these lengths."""
        sizes = np.asarray(lengths, dtype=np.float64)
        return float(self.per_row * len(sizes) + self.per_token * sizes.sum() + self.per_square * (sizes**2).sum())


def forward_flops(model: Any) -> ForwardFlops:
    """Count a classifier's operations from its linear layers' outputs on two rows of different length."""
    short, long = 4, 8
    at_short, at_long = _linear_flops(model, short), _linear_flops(model, long)
    per_token = (at_long - at_short) / (long - short)
    config = model.config
    return ForwardFlops(at_short - per_token * short, per_token, 4.0 * config.num_hidden_layers * config.hidden_size)


def _linear_flops(model: Any, length: int) -> float:
    import torch

    counts = []

    def count(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        counts.append(2.0 * layer.in_features * output.numel())

    hooks = [layer.register_forward_hook(count) for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    training = model.training
    try:
        ids = torch.zeros((1, length), dtype=torch.long, device=next(model.parameters()).device)
        with torch.no_grad():
            model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return sum(counts)


def matmul_rate(device: torch.device, precision: str, seconds: float = 0.2) -> float:
    """Operations per second of this process in products of large matrices: the best product within some time."""
    import torch

    from scala_lab.training.precision import AUTOCAST

    dtype = torch.float64 if precision == "float64" else AUTOCAST.get(precision, torch.float32)
    left, right = torch.randn(2, MATRIX, MATRIX, device=device).to(dtype)
    best, end = 0.0, time.perf_counter() + seconds
    while best == 0 or time.perf_counter() < end:
        started = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2.0 * MATRIX**3 / (time.perf_counter() - started))
    return best
