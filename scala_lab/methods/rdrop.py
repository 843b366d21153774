"""R-Drop: two passes with independent dropout masks, both of which learn the task and are pulled towards each other.

Method card
-----------
Per sample, with p and q the predictions of the two passes and y the label:

    (CE(p, y) + CE(q, y)) / 2  +  alpha * (KL(p || q) + KL(q || p)) / 2

For regression, with outputs z_1 and z_2: ((z_1 - y)^2 + (z_2 - y)^2) / 2 + alpha * (z_1 - z_2)^2. Gradient flows
through both passes everywhere.

- Options: alpha, and delay for plain steps before it (as published: none). There is no noise; without dropout it is
  a plain step at twice the cost.
- Normalisation: the paper prints sums, CE + CE + alpha' * (KL + KL) / 2. This is half of that with alpha = alpha' / 2,
  so that the task term, and with it losses, learning rates and clipping, compare with other methods. The default
  alpha = 0.5 is alpha' = 1, the weight in the authors' code for RoBERTa on GLUE and for regression. Their code for BERT
  adds KL summed over a micro-batch to mean cross-entropies, so that its weight grows with the micro-batch; this is not
  followed.
- Cost: 6F against 3F of a plain step. Both graphs are needed at once, so micro-batches are half as large.
- The divergence in a run's record is KL(p || q) + KL(q || p), as for the other methods; the loss is the mean of both.
- `two-draws`, in contrast, is ScaLA's step without noise: only the first pass learns the task, and its prediction is
  a constant in the divergence.
- Reference: Liang et al., R-Drop: Regularized Dropout for Neural Networks, NeurIPS 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from scala_lab.divergence import correct_answers, output_divergence
from scala_lab.methods.base import MicroBatch, PlainStep, Step, StepContext, statistics
from scala_lab.models.encoder import Encoder


@dataclass(frozen=True)
class RDropStep(Step):
    """Gradient of (1/B) * sum of the mean task loss of two passes plus alpha times their divergence."""

    delay: float
    alpha: float

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the micro-batch's gradient: that of the task loss alone until t_s."""
        if context.epoch < self.delay:
            return PlainStep()(encoder, batch, context)
        with context.clock.phase("clean forward"):
            e_BLD = encoder.embed(batch.inputs)
            context.seed_dropout(0)
            p_BC = encoder.logits(e_BLD, batch.inputs)
        with context.clock.phase("adversarial forward"):
            context.seed_dropout(1)
            q_BC = encoder.logits(e_BLD, batch.inputs)
            f_B = torch.stack([batch.loss(z_BC) for z_BC in (p_BC, q_BC)]).mean(0)
            r_B = output_divergence(p_BC, q_BC, batch.regression)
            weight = self.alpha if batch.regression else self.alpha / 2
        with context.clock.phase("backward"):
            ((f_B + weight * r_B).sum() * batch.share).backward()
            correct = correct_answers(p_BC, batch.labels, batch.regression)
            sums = {"loss": f_B.detach().sum(), "correct": correct, "divergence": r_B.detach().sum()}
            return statistics(**sums, noised=len(batch.labels))

    def memory_factor(self, encoder: Encoder, context: StepContext) -> float:
        """Return 2 from t_s on: both graphs are needed at once."""
        return 1.0 if context.epoch < self.delay else 2.0
