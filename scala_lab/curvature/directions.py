"""Directions in weight space to look along: eigenvectors, random filter-normalised ones, and between checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scala_lab.curvature.eigen import EigenResult
from scala_lab.curvature.space import ParameterSpace
from scala_lab.errors import UserError
from scala_lab.optim.groups import undecayed_names


@dataclass(frozen=True)
class Direction:
    """A vector over some of a model's parameters. Position t along it means weights w + t * parts.

    Attributes:
        label: What the axis of a figure says, with its unit.
        parts: A tensor per parameter name; parameters without one stay where they are.
    """

    label: str
    parts: Mapping[str, Tensor]

    @property
    def norm(self) -> float:
        """Euclidean length: how far the weights move from position 0 to 1."""
        return float(torch.stack([part.double().norm() for part in self.parts.values()]).norm())


def eigenvector_directions(found: EigenResult, gradient: Tensor | None = None) -> list[Direction]:
    """One direction of unit length per eigenvector; the second derivative along it is the eigenvalue.

    Args:
        found: What `top_eigenpairs` returned.
        gradient: Of the loss, as a touched vector; an eigenvector's sign means nothing, so with it each one is
            turned to where the loss rises, which makes several models comparable.
    """
    directions = []
    for number, touched in enumerate(found.touched_eigenvectors, start=1):
        downhill = gradient is not None and float(touched @ gradient) < 0
        parts = _parts(found.space, found.space.full(-touched if downhill else touched))
        directions.append(Direction(f"distance along eigenvector {number} (units of weight)", parts))
    return directions


def filter_normalised(model: nn.Module, seed: int = 0) -> Direction:
    """A random direction whose rows are as long as the weights' rows (Li et al., 2018).

    Each row d of a trainable matrix, a neuron's incoming weights or a token's embedding w, is drawn from a normal
    distribution and rescaled to ||d|| = ||w||, so that models whose weights differ in scale can be compared. Biases and
    normalisation weights do not move.
    """
    chance = torch.Generator().manual_seed(seed)
    still = undecayed_names(model)
    parts = {}
    for name, weight in model.named_parameters():
        if name in still or not weight.requires_grad:
            continue
        drawn = torch.randn(weight.shape, generator=chance, dtype=torch.float32).to(weight.device, weight.dtype)
        rows, targets = drawn.flatten(1), weight.detach().flatten(1)
        scale = targets.norm(dim=1, keepdim=True) / rows.norm(dim=1, keepdim=True)
        parts[name] = (rows * scale).view_as(weight)
    if not parts:
        raise UserError("a filter-normalised direction needs at least one trainable weight matrix")
    return Direction(f"random direction {seed} (in weight norms, row by row)", parts)


def line_between(start: nn.Module, end: nn.Module) -> Direction:
    """From one checkpoint to another of the same architecture: position 0 is `start`, position 1 is `end`."""
    weights, others = dict(start.named_parameters()), dict(end.named_parameters())
    odd = sorted(set(weights) ^ set(others))
    if odd:
        raise UserError(f"a line needs two models of one architecture: only one of them has {odd[0]}")
    for name, weight in weights.items():
        if weight.shape != others[name].shape:
            shapes = f"{tuple(weight.shape)} and {tuple(others[name].shape)}"
            raise UserError(f"a line needs two models of one architecture: {name} has shapes {shapes}")
    parts = {name: others[name].detach().to(weight) - weight.detach() for name, weight in weights.items()}
    return Direction("position between the checkpoints (0 = first, 1 = second)", parts)


def _parts(space: ParameterSpace, full: Tensor) -> dict[str, Tensor]:
    sizes = [value.numel() for value in space.parameters.values()]
    return {
        name: part.view_as(value)
        for (name, value), part in zip(space.parameters.items(), full.split(sizes), strict=True)
    }
