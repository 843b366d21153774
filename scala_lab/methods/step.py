"""What every step function takes and gives: a micro-batch, the moment in the run, and what it counted."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scala_lab.clock import Clock
from scala_lab.methods.random_numbers import mix
from scala_lab.methods.recipes import STEP_FUNCTIONS, find_recipe
from scala_lab.models.encoder import Encoder


@dataclass(frozen=True)
class MicroBatch:
    """Samples that run at once.

    Attributes:
        inputs: What the model takes: input_ids, attention_mask and, where it has them, token_type_ids.
        labels: Class indices, or scores for regression.
        samples: Row number of each sample in the training set: noise is a function of it.
        share: 1/B with the true size B of the global batch, so that micro-batches of all workers sum to the mean.
        regression: Whether labels are scores.
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor
    samples: Tensor
    share: float
    regression: bool

    @property
    def positions_BL(self) -> Tensor:
        """Place of each token in its row, counted without padding on the left; (1, length) where there is none."""
        mask_BL = self.inputs["attention_mask"]
        places_BL = torch.arange(mask_BL.shape[1], device=mask_BL.device).unsqueeze(0)
        if bool(mask_BL[:, 0].all()):
            return places_BL
        return places_BL - (mask_BL.cumsum(1) == 0).sum(1, keepdim=True)

    @property
    def mask_BL1(self) -> Tensor:
        """1 on real tokens, 0 on padding."""
        return self.inputs["attention_mask"].unsqueeze(-1)


@dataclass(frozen=True)
class Moment:
    """Where in the run a micro-batch stands; all randomness derives from it, so a resumed run repeats it.

    Attributes:
        seed: The run's seed.
        step: Global step, 0-based.
        epoch: Epochs done, with fractions.
        part: Number of this micro-batch among all micro-batches of all workers in the step.
        clock: Takes the time of each phase.
        settled: Whether the run's delay rule lets the noise start before t_s.
    """

    seed: int
    step: int
    epoch: float
    part: int
    clock: Clock
    settled: bool = False

    def seed_dropout(self, draw: int = 0) -> None:
        """Start the dropout stream of this micro-batch; equal draws give equal masks.

        The same as `torch.manual_seed`, which also notes down the whole call stack for every kind of device that is
        not in use: a millisecond each time.
        """
        seed = mix(self.seed, self.step, self.part, draw)
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


STATISTICS = ("loss", "correct", "divergence", "noised", "skipped")
"""Sums over samples that a step function returns: task loss, right answers (classification), divergence r,
samples that had a noise term, samples whose noise term was left out because it was not finite."""


def statistics(**sums: Tensor | float) -> Tensor:
    """The sums as a vector in the order of `STATISTICS`; those not given are 0."""
    reference = next(value for value in sums.values() if isinstance(value, Tensor))
    return torch.stack([torch.as_tensor(sums.get(name, 0.0), device=reference.device).double() for name in STATISTICS])


class Step:
    """Adds the gradient of a micro-batch, weighted by its share, to the parameters' `.grad`."""

    def __call__(self, encoder: Encoder, batch: MicroBatch, now: Moment) -> Tensor:
        """Return the micro-batch's `STATISTICS`."""
        raise NotImplementedError

    def memory_factor(self, encoder: Encoder, now: Moment) -> float:
        """Peak activation memory over that of a plain step on as many samples.

        Micro-batches are smaller by this factor, so that a step with noise fits wherever a plain one does.
        """
        return 1.0


def build_step(method: str, options: Mapping[str, Any]) -> Step:
    """The step function of a method, with its options."""
    module, function = STEP_FUNCTIONS[find_recipe(method).step].split(":")
    return getattr(importlib.import_module(module), function)(**options)
