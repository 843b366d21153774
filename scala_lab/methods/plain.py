"""Plain step: the mean task loss, nothing else.

Cost: one forward and one backward pass, 3F when a backward counts as two forward passes F.
With AdamW it is the Hugging Face baseline, with LAMB the LAMB baseline, with NGD the theorem's outer update.
"""

from __future__ import annotations

from torch import Tensor

from scala_lab.methods.step import MicroBatch, Moment, Step, statistics
from scala_lab.methods.task_loss import correct_answers, task_loss
from scala_lab.models.encoder import Encoder


class PlainStep(Step):
    """Gradient of (1/B) * sum of the task loss."""

    def __call__(self, encoder: Encoder, batch: MicroBatch, now: Moment) -> Tensor:
        """Add the micro-batch's gradient."""
        now.seed_dropout()
        with now.clock.phase("clean forward"):
            logits = encoder.logits(encoder.embed(batch.inputs), batch.inputs)
            loss = task_loss(logits, batch.labels, batch.regression).sum()
            counted = statistics(loss=loss.detach(), correct=correct_answers(logits, batch.labels, batch.regression))
        with now.clock.phase("backward"):
            (loss * batch.share).backward()
        return counted
