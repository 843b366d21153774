"""SAM and ASAM: the gradient at the worst weights within a small radius, applied at the weights themselves.

Method card
-----------
For each group of m samples with mean loss f and gradient g at the weights w:

    w' = w + rho * T^2 g / ||T g||,    T = 1 (SAM),    T = |w| + eta (ASAM),

and the step's gradient is the mean over all samples of the gradient of their loss at their group's w'.

- Options: sam_rho (default 0.05 for `sam` and 0.5 for `asam`, as published), sam_m, sam_adaptive (what `asam` sets).
- m: None, the default, is the textbook's method, one ascent for the whole global batch. Smaller groups follow the
  order of the shuffle, the last one may be smaller, and each weighs by its size: no micro-batch size and no number of
  workers changes them. SAM's authors let each of their accelerators ascend by itself, which is m = B / accelerators.
- Communication: with m = B the first pass is summed over workers too, two all-reduces a step. With m < B workers take
  whole groups and ascend alone, one all-reduce a step; more workers than groups leave some idle.
- ASAM takes T = |w| + 0.01 for matrices and tables, and T = 1 for vectors. Its authors' code has T = 1 for biases
  alone: the weights of LayerNorm, the other vectors, are near 1, where both are the same.
- Both passes of a sample have the same dropout masks. The norms are of the gradient alone, without a floor: the ascent
  depends neither on B nor on a loss scale. A group whose gradient is 0 or not finite is not perturbed, and counts as
  skipped. The ascent takes the gradient of all trainable weights before clipping and without weight decay.
- Loss and accuracy in a run's record are those of the first pass, at w.
- Cost: 6F against 3F of a plain step. It takes the memory of a plain step and copies of weights and gradient.
- References: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021; Kwon et
  al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks, ICML 2021.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scala_lab.methods.base import MicroBatch, PlainStep, Step, StepContext, statistics
from scala_lab.models.encoder import Encoder

ETA = 0.01


@dataclass(frozen=True)
class SamStep(Step):
    """Gradient of (1/B) * sum of the task loss at perturbed weights."""

    sam_rho: float
    sam_adaptive: bool
    sam_m: int | None = None

    ascent_pass = PlainStep(("inner forward", "inner backward"))  # the gradient at w, which makes the perturbation

    @property
    def ascent_samples(self) -> int | None:
        """The number m."""
        return self.sam_m

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the micro-batch's gradient at the weights to which the trainer has moved the model."""
        PlainStep()(encoder, batch, context)
        samples = torch.tensor(float(len(batch.labels)), device=batch.labels.device)
        return statistics(**{"noised" if context.perturbed else "skipped": samples})

    @torch.no_grad()
    def perturb(self, parameters: Sequence[Tensor]) -> bool:
        """Add rho * T^2 g / ||T g||, with g in `.grad`; where that is 0 or not finite, change nothing, return False."""
        pairs = [(w, w.grad) for w in parameters if w.grad is not None]
        norms = [torch.linalg.vector_norm(self._scaled(w, g), dtype=torch.float64) for w, g in pairs]
        norm = float(torch.stack(norms).norm())
        if not 0 < norm < math.inf:
            return False
        for w, g in pairs:
            w.add_(self._scaled(w, self._scaled(w, g)), alpha=self.sam_rho / norm)
        return True

    def _scaled(self, w: Tensor, g: Tensor) -> Tensor:
        """Return T g."""
        return w.abs().add_(ETA).mul_(g) if self.sam_adaptive and w.ndim > 1 else g
