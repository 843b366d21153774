"""The gradient of the first ascent step from the clean backward pass, to first order in the random start delta_0.

The divergence r is 0 at the clean input and grows with the square of the change of the outputs z:

    r(delta) = dz' F dz + ...,   dz = J delta,   F = diag(p) - p p'   (regression: F = 1)

so its gradient at delta_0 is 2 J' F J delta_0. F is 0 along (1, ..., 1), hence only J' on the C - 1 zero-sum
directions q is needed: with g_q = J' q, both J delta_0 = sum of (g_q . delta_0) q and the result, a sum of g_q, follow.
One of them comes for free: the clean backward computes J' (p - y). Two classes and regression need no other; three
classes need one more pull through the clean graph, which comes before the backward, so that the backward frees the
graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

Pulled = tuple[Tensor, Tensor]
"""A direction q and g_q = J' q."""

SMALLEST_SLOPE = 1e-20
"""Below it, what the clean backward gives may have underflowed in float32."""


def loss_with_slope(logits_BC: Tensor, labels_B: Tensor, regression: bool) -> tuple[Tensor, Tensor]:
    """The task loss of each sample, and its derivative by the outputs, exact also where the answer is nearly sure.

    Cross-entropy as log(1 + sum over wrong classes of exp(z_j - z_y)): its derivative never takes the difference
    p_y - 1, whose rounding would bend the direction of samples that the model has learned.
    """
    if regression:
        gap_B = logits_BC.squeeze(-1) - labels_B.to(logits_BC.dtype)
        return gap_B.square(), 2 * gap_B.detach().unsqueeze(-1)
    true_BC = torch.nn.functional.one_hot(labels_B, logits_BC.shape[-1]).bool()
    lead_BC = (logits_BC - logits_BC.gather(-1, labels_B.unsqueeze(-1))).masked_fill(true_BC, 0.0)
    wrong_BC = lead_BC.detach().softmax(-1).masked_fill(true_BC, 0.0)
    slope_BC = torch.where(true_BC, -wrong_BC.sum(-1, keepdim=True), wrong_BC)
    return lead_BC.logsumexp(-1), slope_BC


def further_directions(slope_BC: Tensor) -> list[Tensor]:
    """Directions q whose g_q the clean backward does not give, so that they are to be pulled before it.

    The second one of three classes; and the first one, if there are samples of which the backward leaves nothing.
    """
    first_BC = _first_direction(slope_BC)
    further = [first_BC] if _too_small(slope_BC).any() else []
    if slope_BC.shape[-1] > 2:
        # the zero-sum direction at right angles to the first one
        further.append(torch.linalg.cross(first_BC, torch.full_like(first_BC, 3**-0.5)))
    return further


def divergence_gradient(
    logits_BC: Tensor, slope_BC: Tensor, pulled_BLD: Tensor, further: Sequence[Pulled], delta_BLD: Tensor
) -> Tensor:
    """The gradient of each sample's divergence at delta_0, by the noise.

    Args:
        logits_BC: Clean outputs; one column means regression.
        slope_BC: Derivative of each sample's loss by its outputs.
        pulled_BLD: J' slope: the derivative of each sample's loss by its embeddings.
        further: All of `further_directions` with their J' q.
        delta_BLD: The random start delta_0, 0 on padding.
    """
    directions = list(further)
    if not _too_small(slope_BC).any():
        directions.append((_first_direction(slope_BC), pulled_BLD / slope_BC.norm(dim=-1).view(-1, 1, 1)))
    moved_BC = _sum(_per_sample(g * delta_BLD).unsqueeze(-1) * q for q, g in directions)
    raised_BC = 2 * _apply_metric(logits_BC, moved_BC)
    return _sum((q * raised_BC).sum(-1).view(-1, 1, 1) * g for q, g in directions)


def _first_direction(slope_BC: Tensor) -> Tensor:
    """That of the slope, as a unit vector; any where there is next to none."""
    too_small_B1 = _too_small(slope_BC).unsqueeze(-1)
    length_B1 = slope_BC.norm(dim=-1, keepdim=True).masked_fill(too_small_B1, 1.0)
    return torch.where(too_small_B1, _some_direction(slope_BC), slope_BC / length_B1)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


def _too_small(slope_BC: Tensor) -> Tensor:
    return ~(slope_BC.norm(dim=-1) > SMALLEST_SLOPE)


def _some_direction(slope_BC: Tensor) -> Tensor:
    """A unit direction with sum 0 (regression: the only one there is)."""
    direction_BC = torch.zeros_like(slope_BC)
    direction_BC[:, 0] = 1.0
    if slope_BC.shape[-1] > 1:
        direction_BC[:, 1] = -1.0
    return direction_BC / direction_BC.norm(dim=-1, keepdim=True)


def _apply_metric(logits_BC: Tensor, moved_BC: Tensor) -> Tensor:
    """F times a change of the outputs: p_i times the sum over j of p_j (m_i - m_j), which cancels nothing."""
    if logits_BC.shape[-1] == 1:
        return moved_BC
    p_BC = logits_BC.softmax(-1)
    apart_BCC = moved_BC.unsqueeze(-1) - moved_BC.unsqueeze(-2)
    return p_BC * (apart_BCC * p_BC.unsqueeze(-2)).sum(-1)


def _per_sample(values_BLD: Tensor) -> Tensor:
    return values_BLD.flatten(1).sum(1)
