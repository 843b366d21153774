"""Published adversarial training packages as step functions of our loop: same model, rows and optimizer, their code.

Both run on our encoder with its quick dropout and get the micro-batches that our batching cut, so that a step of theirs
over a plain step shows the method's own cost, not that of a loop around it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.nn import functional

from scala_lab.divergence import correct_answers, task_loss
from scala_lab.methods.base import MicroBatch, Step, StepContext, statistics
from scala_lab.models.encoder import Encoder


@dataclass(frozen=True)
class SmartStep(Step):
    """smart-pytorch's SMARTLoss beside the task loss, as its description uses it: one ascent step, weight 0.02."""

    weight: float = 0.02

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the micro-batch's gradient."""
        from smart_pytorch import SMARTLoss, kl_loss, sym_kl_loss

        context.seed_dropout()
        embeddings = encoder.embed(batch.inputs)
        logits = encoder.logits(embeddings, batch.inputs)
        f_B = task_loss(logits, batch.labels, batch.regression)
        inner, last = (_squared, _squared) if batch.regression else (kl_loss, sym_kl_loss)
        smart = SMARTLoss(lambda embed: encoder.logits(embed, batch.inputs), inner, last)
        r = smart(embeddings, logits)
        ((f_B.sum() + self.weight * r) * batch.share).backward()
        return statistics(
            loss=f_B.detach().sum(),
            correct=correct_answers(logits, batch.labels, batch.regression),
            divergence=r.detach(),
            noised=float(len(batch.labels)),
        )


@dataclass(frozen=True)
class TorchblocksFreeLBStep(Step):
    """torchblocks' FreeLB with K = 3 passes, a port of the official code for Hugging Face models.

    It looks words up in the model's own table, so each of its passes pays for a dense gradient of all words, as its
    users do. It does not divide by K: its gradient is that of the sum over the passes.
    """

    adv_lr: float = 0.1
    adv_init_mag: float = 0.1

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the micro-batch's gradient."""
        context.seed_dropout()
        model: Any = encoder.model
        attack = torchblocks_freelb()(3, self.adv_lr, self.adv_init_mag, adv_max_norm=0.3)
        attack.base_model = model.base_model_prefix
        rows = len(batch.labels)
        # it divides its mean over the rows by the number of accumulated batches; this makes it a share of the sum
        loss = attack.attack(model, {**batch.inputs, "labels": batch.labels}, 1 / (rows * batch.share))
        return statistics(loss=loss.detach() / batch.share, noised=float(rows))


def torchblocks_freelb() -> Any:
    """Its FreeLB class; its wheel forgot the package's own folder, so the name is given back to its modules here."""
    if "torchblocks" not in sys.modules:
        package = ModuleType("torchblocks")
        package.__path__ = [str(importlib.metadata.distribution("torchblocks").locate_file(""))]
        sys.modules["torchblocks"] = package
    return importlib.import_module("torchblocks.callback.adversarial").FreeLB


def _squared(outputs: Tensor, others: Tensor) -> Tensor:
    return functional.mse_loss(outputs, others, reduction="sum")
