"""A small encoder, a micro-batch and a step context, for tests of step functions."""

from __future__ import annotations

from pathlib import Path

import torch

from scala_lab.clock import Clock
from scala_lab.config import RunSpec
from scala_lab.data.tasks import Task
from scala_lab.methods.base import MicroBatch, StepContext, build_step
from scala_lab.methods.recipes import RECIPES
from scala_lab.models.encoder import Encoder
from scala_lab.models.loading import load_classifier

LENGTHS = (9, 6, 6, 4)


def make_encoder(folder: Path, classes: int = 2, dtype=torch.float64, dropout: float | None = 0.0) -> Encoder:
    """The folder's model with a head of that many classes (0 for regression) and gradients at 0."""
    names = tuple(str(number) for number in range(classes))
    model = load_classifier(str(folder), Task("own", ("text",), "label", names), dropout=dropout).to(dtype)
    with torch.no_grad():
        model.classifier.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.train()
    return Encoder(model)


def make_batch(rows=range(4), classes: int = 2, length: int | None = None, share: float = 0.25) -> MicroBatch:
    """Some rows of one fixed set of four, padded to `length` or to the longest of them."""
    rows = list(rows)
    length = length or max(LENGTHS[row] for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        rng = torch.Generator().manual_seed(row)
        ids[index, : LENGTHS[row]] = torch.randint(5, 45, (LENGTHS[row],), generator=rng)
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": torch.zeros_like(ids)}
    labels = torch.tensor([row % classes for row in rows]) if classes else torch.tensor([0.5 * row for row in rows])
    return MicroBatch(inputs, labels, torch.tensor(rows), share, regression=classes == 0)


def make_step(method: str = "scala", **options):
    """The step function of a recipe, from the first step on unless a delay is given, with the exact ascent."""
    first = {"delay": 0.0, "pga": "exact"}
    options = {name: value for name, value in first.items() if name in RECIPES[method].option_values()} | options
    recipe = RunSpec.of(method=method, **options).resolved().recipe
    return build_step(method, recipe.options)


def step_context(epoch: float = 0.0, step: int = 3, part: int = 0) -> StepContext:
    """The context of a step of a run with seed 7."""
    return StepContext(seed=7, step=step, epoch=epoch, part=part, clock=Clock())


def exact_noise(step, encoder: Encoder, batch: MicroBatch, context: StepContext | None = None) -> torch.Tensor:
    """The noise that a ScaLA step with the exact ascent adds."""
    with torch.no_grad():
        e = encoder.embed(batch.inputs)
        gamma = encoder.logits(e, batch.inputs)
    return step._ascend(encoder, batch, context or step_context(), e, gamma)[0]


def flat_gradient(encoder: Encoder) -> torch.Tensor:
    """All gradients, concatenated."""
    return torch.cat([parameter.grad.flatten() for parameter in encoder.model.parameters()])
