"""Sharpness as SAM defines it: how far the loss rises within a small radius around the weights.

    max L(w + e) - L(w) over ||e / T|| <= rho,    T = 1 (SAM),    T = |w| (ASAM)

The adaptive one, with T = |w|, stays the same when weights are rescaled in a way that leaves the network's function as
it is. References: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021; Kwon
et al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks, ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from scala_lab.curvature.loss import is_regression, on_device, with_pad_token, without_labels
from scala_lab.divergence import task_loss
from scala_lab.errors import UserError
from scala_lab.models.encoder import eval_mode, without_cache


def sam_sharpness(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], rho: float, steps: int = 1, *, adaptive: bool = False
) -> np.ndarray:
    """Compute how far the mean loss rises after each of several ascent steps.

    Every step goes to the edge of the ball, uphill by the gradient g where the last one ended, the first by that at w:

        e' = rho * T^2 g(w + e) / ||T g(w + e)||

    The first rise is thus that of SAM's own ascent, and the largest a lower bound of the maximum. Where the loss is
    convex, no step falls (the generalised power method of Journee et al., 2010). The model is called in eval mode with
    other weights in place of its own, which are never written. It costs a gradient per step and a forward pass.
    """
    batches = on_device(batches, next(model.parameters()).device)
    if not batches or any("labels" not in batch for batch in batches):
        raise UserError("sharpness needs at least one batch, and labels in every batch")
    model = with_pad_token(model, batches)
    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    scales: dict[str, Any] = {name: weight.abs() if adaptive else 1.0 for name, weight in weights.items()}
    with eval_mode(model):
        start, gradient = _loss_and_gradient(model, weights, batches)
        rises = np.empty(steps)
        for step in range(steps):
            uphill = {name: scales[name] * part for name, part in gradient.items()}
            norm = math.hypot(*(float(part.norm(dtype=torch.float64)) for part in uphill.values()))
            distance = rho / norm if norm else 0.0
            moved = {name: weights[name] + distance * scales[name] * part for name, part in uphill.items()}
            loss, gradient = _loss_and_gradient(model, moved, batches, last=step + 1 == steps)
            rises[step] = loss - start
    return rises


def _loss_and_gradient(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]], last: bool = False
) -> tuple[float, dict[str, Tensor]]:
    """Return the mean loss over all samples with other weights, and its gradient, none at the last step."""
    samples = sum(len(batch["labels"]) for batch in batches)
    regression = is_regression(model, [batch["labels"] for batch in batches])
    leaves = {name: weight.detach().requires_grad_(not last) for name, weight in weights.items()}
    losses = []
    with torch.set_grad_enabled(not last):
        for batch in batches:
            inputs = {**without_labels(batch), **without_cache(model)}
            logits = functional_call(model, leaves, args=(), kwargs=inputs).logits
            loss = task_loss(logits, batch["labels"], regression).double().sum() / samples
            if not last:
                loss.backward()
            losses.append(float(loss.detach()))
    return math.fsum(losses), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
