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

from scala_lab.curvature.loss import is_regression, on_device, without_labels
from scala_lab.divergence import task_loss
from scala_lab.errors import UserError


def sam_sharpness(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    radii: Sequence[float],
    steps: int = 1,
    *,
    adaptive: bool = False,
) -> np.ndarray:
    """Compute how far the mean loss rises after each of several ascent steps: a row per radius, a column per step.

    Every step goes to the edge of the ball, uphill by the gradient g where the last one ended, the first by that at w:

        e' = rho * T^2 g(w + e) / ||T g(w + e)||

    The first column is thus where SAM ascends to, and the largest of a row a lower bound of the maximum. Where the loss
    is convex, no step falls (the generalised power method of Journee et al., 2010). The model is called with other
    weights in place of its own, in eval mode; its own are never written. It costs 1 + radii * (steps - 1) gradients and
    a forward pass per radius.
    """
    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    batches = on_device(batches, next(model.parameters()).device)
    if not batches or any("labels" not in batch for batch in batches):
        raise UserError("sharpness needs at least one batch, and labels in every batch")
    training = model.training
    model.eval()
    try:
        start, gradient = _loss_and_gradient(model, weights, batches)
        rises = np.empty((len(radii), steps))
        for row, radius in enumerate(radii):
            uphill = gradient
            for step in range(steps):
                moved = _ascended(weights, uphill, radius, adaptive)
                loss, uphill = _loss_and_gradient(model, moved, batches, with_gradient=step + 1 < steps)
                rises[row, step] = loss - start
    finally:
        model.train(training)
    return rises


def _ascended(
    weights: Mapping[str, Tensor], gradient: Mapping[str, Tensor], radius: float, adaptive: bool
) -> dict[str, Tensor]:
    """Return w + rho T^2 g / ||T g||; w itself where that gradient is 0."""
    scales = {name: weights[name].abs() if adaptive else 1.0 for name in gradient}
    parts = (torch.linalg.vector_norm(scales[name] * part, dtype=torch.float64) for name, part in gradient.items())
    norm = math.hypot(*map(float, parts))
    distance = radius / norm if norm else 0.0
    return {**weights, **{name: weights[name] + distance * scales[name] ** 2 * gradient[name] for name in gradient}}


def _loss_and_gradient(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]], with_gradient: bool = True
) -> tuple[float, dict[str, Tensor]]:
    """Return the mean loss over all samples with other weights, and its gradient by those that it depends on."""
    samples = sum(len(batch["labels"]) for batch in batches)
    regression = is_regression(model, [batch["labels"] for batch in batches])
    leaves = {name: weight.detach().requires_grad_(with_gradient) for name, weight in weights.items()}
    losses = []
    with torch.set_grad_enabled(with_gradient):
        for batch in batches:
            logits = functional_call(model, leaves, args=(), kwargs=without_labels(batch)).logits
            loss = task_loss(logits, batch["labels"], regression).double().sum() / samples
            if with_gradient:
                loss.backward()
            losses.append(float(loss.detach()))
    return math.fsum(losses), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
