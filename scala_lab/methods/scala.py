"""ScaLA: the task loss plus the divergence that lightweight adversarial noise on the word embeddings causes.

Method card
-----------
Objective, with x the weights, xi a sample, delta the noise and gamma = Phi(x, xi) the clean prediction:

    min_x  f(x, xi) + lambda * max_{|delta|_inf <= omega} r(gamma, Phi(x, xi, delta))

- Options: see `scala_lab.config.RecipeSpec`; for delay_rule also `base.Settling`, for pga `recipes.chosen_pga`.
- Cost of a step with noise and T = 1: 8F against 3F for a plain step (clean forward F, inner forward F and backward
  F for the noise alone, adversarial forward F, backward through both 4F). With a delay of 5 of 6 epochs the whole run
  costs 1.3 times a plain one. With the fused ascent the clean backward also gives the gradient of the noise: 6F, and 7F
  with three classes.
- Memory is that of a plain step: f is backpropagated before the noisy passes, which frees the clean graph. Where the
  clean graph is needed for longer, micro-batches are smaller; see `memory_factor`.
- Under autocast the inner passes run in float32, and so does a clean pass of their own for gamma (F more): the random
  start moves the outputs by less than bfloat16 can resolve. The fused ascent takes no difference of two passes and
  needs none of this.
- The inner passes never communicate.
- With `ascent="literal"` and the paper's rho and omega the noise changes r by about 1e-9: what regularises then is the
  disagreement of independent dropout masks. In the recipe `scala-effective` the noise itself acts, and `two-draws` is
  the control without noise.
- `masks="off"` runs the clean pass without dropout as well from t_s on, because gamma enters r.
- Reference: ScaLA, Algorithm 1.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from scala_lab.divergence import correct_answers, output_divergence
from scala_lab.methods.base import MicroBatch, PlainStep, Step, StepContext, normal_noise, statistics
from scala_lab.methods.recipes import chosen_pga
from scala_lab.models.encoder import Encoder, eval_mode

CLEAN, INNER, ADVERSARIAL = 0, 1, -1
"""Dropout draws of the passes of a step; the inner pass of ascent step t has draw INNER + t."""

MIN_DERIVATIVE, MIN_SMOOTHED = 1e-20, 1e-3
"""Below this norm of a sample's df, the result of the clean backward may have underflowed in float32; with smoothed
labels, where df crosses 0, its rounding may be a good part of it."""


@dataclass(frozen=True)
class ScalaStep(Step):
    """Gradient of (1/B) * sum of f + lambda * r."""

    delay: float
    delay_rule: Literal["fixed", "settled"]
    lambda_: float
    rho: float
    omega: float
    sigma: float
    pga_steps: int
    pga: Literal["auto", "exact", "fused"]
    ascent: Literal["literal", "normalized"]
    target: Literal["LP", "GT"]
    noise: Literal["pga", "gaussian", "none"]
    masks: Literal["independent", "shared", "off"]
    label_gradient: bool

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the micro-batch's gradient: that of f until t_s, that of f + lambda * r afterwards."""
        if not self._noise_started(context):
            return PlainStep()(encoder, batch, context)
        with eval_mode(encoder.model) if self.masks == "off" else nullcontext():
            return self._algorithm_1(encoder, batch, context)

    def _algorithm_1(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the gradient of Algorithm 1's step for a micro-batch; the group-wise update is LAMB's."""
        phase = context.clock.phase
        with phase("clean forward"):  # gamma = Phi(x, xi), and f
            looked_up_BLD = encoder.embed(batch.inputs)
            # all passes start from this copy, so that one backward takes their summed gradients to the word table
            e_BLD = looked_up_BLD.detach().requires_grad_()
            gamma_BC = self._logits(encoder, batch, context, CLEAN, e_BLD)
            f_B, df_BC = loss_with_derivative(gamma_BC, batch)

        fused = None
        if self._is_fused(encoder):
            with phase("inner backward"):
                fused = FusedAscent(self.target, e_BLD, gamma_BC, df_BC, batch.smoothing)
        if not self.label_gradient:  # gamma is a constant in r: free the clean graph before another one is built
            with phase("backward"):
                (f_B.sum() * batch.share).backward()
            gamma_BC, f_B = gamma_BC.detach(), f_B.detach()

        delta_BLD, usable_B = self._ascend(encoder, batch, context, e_BLD, gamma_BC, fused)

        with phase("adversarial forward"):  # r(gamma, Phi(x, xi, delta)), 0 for samples where it is not finite
            noisy_BLD = e_BLD + delta_BLD
            del delta_BLD, fused  # frees memory for the next pass
            noisy_BC = self._logits(encoder, batch, context, ADVERSARIAL, noisy_BLD)
            r_B = output_divergence(gamma_BC, noisy_BC, batch.regression)
            finite_B = torch.isfinite(r_B.detach())
            if not finite_B.all():
                del r_B, noisy_BC
                usable_B = usable_B & finite_B
                noisy_BLD = torch.where(usable_B.view(-1, 1, 1), noisy_BLD, e_BLD)
                noisy_BC = self._logits(encoder, batch, context, ADVERSARIAL, noisy_BLD)
                r_B = output_divergence(gamma_BC, noisy_BC, batch.regression)
            r_B = torch.where(usable_B, r_B, 0.0)

        with phase("backward"):  # of f + lambda * r, or of lambda * r where that of f has run
            objective = self.lambda_ * r_B.sum() + (f_B.sum() if self.label_gradient else 0.0)
            (objective * batch.share).backward()
            if looked_up_BLD.requires_grad:
                looked_up_BLD.backward(e_BLD.grad)
            correct = correct_answers(gamma_BC, batch.labels, batch.regression)
            sums = {"loss": f_B.detach().sum(), "correct": correct, "divergence": r_B.detach().sum()}
            return statistics(**sums, noised=usable_B.sum(), skipped=(~usable_B).sum())

    def _ascend(
        self,
        encoder: Encoder,
        batch: MicroBatch,
        context: StepContext,
        e_BLD: Tensor,
        gamma_BC: Tensor,
        fused: FusedAscent | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the noise delta_T, and which samples have a finite one; the others get 0.

        Projected gradient ascent, with g the gradient of r (target LP) or of f (target GT):

            delta_0 = sigma * N(0, 1),   delta_(t+1) = clip(delta_t + rho * g(delta_t), -omega, omega)

        On padding delta is 0. `gaussian` noise is omega * N(0, 1) without ascent.
        """
        phase = context.clock.phase
        usable_B = torch.ones(len(batch.labels), dtype=torch.bool, device=e_BLD.device)
        if self.noise == "none":
            return torch.zeros_like(e_BLD), usable_B
        gaussian = self.noise == "gaussian"
        with phase("adversarial forward" if gaussian else "inner backward" if fused else "inner forward"):
            width, dtype = e_BLD.shape[-1], e_BLD.dtype
            delta_BLD = normal_noise(context.seed, context.step, batch.samples, batch.positions_BL, width, dtype)
            delta_BLD.mul_(self.omega if gaussian else self.sigma).mul_(batch.mask_BL1)
        if gaussian:
            return delta_BLD, usable_B
        if not fused and encoder.autocast is not None and self.target == "LP":
            with phase("inner forward"), torch.no_grad(), encoder.full_precision():
                gamma_BC = self._logits(encoder, batch, context, CLEAN, e_BLD)
        for t in range(self.pga_steps):
            if not fused:
                g_BLD = self._exact_gradient(encoder, batch, context, e_BLD + delta_BLD, gamma_BC.detach(), t)
            with phase("inner backward"):
                if fused:
                    g_BLD = fused.gradient(gamma_BC, delta_BLD, batch.share)
                usable_B = usable_B & _is_finite(g_BLD)
                delta_BLD = self._project(delta_BLD, _zero_unless(usable_B, g_BLD), batch)
                del g_BLD
        return _zero_unless(usable_B, delta_BLD), usable_B

    def _project(self, delta_BLD: Tensor, g_BLD: Tensor, batch: MicroBatch) -> Tensor:
        """Return clip(delta + rho * g, -omega, omega), 0 on padding; `normalized` divides g by max|g| per token."""
        if self.ascent == "normalized":
            largest_BL1 = g_BLD.abs().amax(-1, keepdim=True)
            g_BLD = g_BLD / largest_BL1.clamp_min(torch.finfo(g_BLD.dtype).tiny)
        moved_BLD = (self.rho * g_BLD).add_(delta_BLD)
        return moved_BLD.clamp_(-self.omega, self.omega).mul_(batch.mask_BL1)

    def _exact_gradient(
        self, encoder: Encoder, batch: MicroBatch, context: StepContext, noisy_BLD: Tensor, gamma_BC: Tensor, t: int
    ) -> Tensor:
        """Return the gradient of the SUM over samples by the noise: that of a sample must not depend on the batch."""
        noisy_BLD = noisy_BLD.detach().requires_grad_()
        with context.clock.phase("inner forward"), encoder.full_precision():
            logits_BC = self._logits(encoder, batch, context, INNER + t, noisy_BLD)
            if self.target == "GT":
                objective = batch.loss(logits_BC).sum()
            else:
                objective = output_divergence(gamma_BC, logits_BC, batch.regression).sum()
        with context.clock.phase("inner backward"):
            return torch.autograd.grad(objective, noisy_BLD)[0]

    def _logits(self, encoder: Encoder, batch: MicroBatch, context: StepContext, draw: int, e_BLD: Tensor) -> Tensor:
        context.seed_dropout(CLEAN if self.masks == "shared" else draw)
        return encoder.logits(e_BLD, batch.inputs)

    def _noise_started(self, context: StepContext) -> bool:
        return self.lambda_ != 0 and (context.settled or context.epoch >= self.delay)

    def _is_fused(self, encoder: Encoder) -> bool:
        return chosen_pga(vars(self), _num_outputs(encoder), encoder.drops_out) == "fused"

    def memory_factor(self, encoder: Encoder, context: StepContext) -> float:
        """Return 2 for the two graphs of `label_gradient`, 8/7 where a VJP precedes the backward of f, else 1.

        The VJP holds a layer's gradients beside all activations, because it keeps the graph: measured 1.14 to 1.17
        times the memory of a plain step on three layers, less on more.
        """
        if not self._noise_started(context):
            return 1.0
        if self.label_gradient:
            return 2.0
        extra = self.target == "LP" and _num_outputs(encoder) > 2
        return 8 / 7 if extra and self._is_fused(encoder) else 1.0


def _num_outputs(encoder: Encoder) -> int:
    return encoder.model.config.num_labels  # type: ignore[return-value, union-attr]


def _is_finite(values_BLD: Tensor) -> Tensor:
    return torch.isfinite(torch.linalg.vector_norm(values_BLD.flatten(1), torch.inf, dim=1))


def _zero_unless(usable_B: Tensor, values_BLD: Tensor) -> Tensor:
    """Return the values of usable samples, and 0 for the others, also where they are not finite."""
    return torch.where(usable_B.view(-1, 1, 1), values_BLD, 0.0)


class FusedAscent:
    """The gradient of the first ascent step from the clean backward pass, to first order in the random start delta_0.

    The divergence r is 0 at the clean input and grows with the square of the change of the outputs z = gamma:

        r(delta) = dz' F dz + ...,   dz = J delta,   F = diag(p) - p p'   (regression: F = 1)

    so its gradient at delta_0 is 2 J' F J delta_0. F is 0 along (1, ..., 1), hence J' is needed on the C - 1 zero-sum
    directions q only: with g_q = J' q, both J delta_0 = sum of (g_q . delta_0) q and the result, a sum of g_q, follow.
    The clean backward computes one of them anyway: J' df with df = p - y, the derivative of f by z. Two classes and
    regression need no other; three classes need one more vector-Jacobian product, before that backward frees the graph.
    """

    def __init__(
        self, target: Literal["LP", "GT"], e_BLD: Tensor, gamma_BC: Tensor, df_BC: Tensor, smoothing: float = 0.0
    ) -> None:
        self.target, self.e_BLD, self.df_BC = target, e_BLD, df_BC
        self.norm_B1 = df_BC.norm(dim=-1, keepdim=True)
        vanishes_B1 = ~(self.norm_B1 > (MIN_SMOOTHED if smoothing else MIN_DERIVATIVE))
        # the first direction is that of df, or (1, -1, 0, ...) where df vanishes; (1) for regression
        fallback_C = functional.pad(df_BC.new_tensor([1.0, -1.0]), (0, df_BC.shape[-1] - 2))
        unit_BC = df_BC / self.norm_B1.masked_fill(vanishes_B1, 1.0)
        self.first_BC = torch.where(vanishes_B1, fallback_C / fallback_C.norm(), unit_BC)
        self.first_is_free = not vanishes_B1.any()
        directions = [] if self.first_is_free else [self.first_BC]
        if df_BC.shape[-1] == 3:  # the second direction is orthogonal to the first and to (1, 1, 1)
            directions.append(torch.linalg.cross(self.first_BC, torch.full_like(df_BC, 3**-0.5)))
        self.vjps = [(q_BC, self._vjp(gamma_BC, q_BC)) for q_BC in directions if target == "LP"]

    def gradient(self, gamma_BC: Tensor, delta_BLD: Tensor, share: float) -> Tensor:
        """Return the gradient of each sample's r, or f for target GT, by the noise at delta_0."""
        # the backward of f, if it has run, left J' df, times the share, in the embeddings' gradient
        g_BLD = self._vjp(gamma_BC, self.df_BC) if self.e_BLD.grad is None else self.e_BLD.grad / share
        if self.target == "GT":
            return g_BLD
        vjps = [*self.vjps, (self.first_BC, g_BLD / self.norm_B1.unsqueeze(-1))] if self.first_is_free else self.vjps
        dz_BC = reduce(torch.add, ((g * delta_BLD).flatten(1).sum(1).unsqueeze(-1) * q for q, g in vjps))
        dr_BC = 2 * _apply_fisher(gamma_BC.detach(), dz_BC)
        return reduce(torch.add, ((q * dr_BC).sum(-1).view(-1, 1, 1) * g for q, g in vjps))

    def _vjp(self, gamma_BC: Tensor, q_BC: Tensor) -> Tensor:
        """Return J' q, for the Jacobian J of a sample's outputs by its embeddings, and keep the graph."""
        return torch.autograd.grad(gamma_BC, self.e_BLD, q_BC, retain_graph=True)[0]


def _apply_fisher(logits_BC: Tensor, dz_BC: Tensor) -> Tensor:
    """Return F dz as p_i * sum over j of p_j (dz_i - dz_j), which does not cancel."""
    if logits_BC.shape[-1] == 1:
        return dz_BC
    p_BC = logits_BC.softmax(-1)
    difference_BCC = dz_BC.unsqueeze(-1) - dz_BC.unsqueeze(-2)
    return p_BC * (difference_BCC * p_BC.unsqueeze(-2)).sum(-1)


def loss_with_derivative(logits_BC: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return each sample's task loss and its derivative by the outputs, accurate also for confident predictions.

    Cross-entropy as log(1 + sum over wrong classes of exp(z_j - z_y)): its derivative never takes the difference
    p_y - 1, whose rounding would change the direction for samples that the model has learned.
    """
    labels_B = batch.labels
    if batch.regression:
        error_B = logits_BC.squeeze(-1) - labels_B.to(logits_BC.dtype)
        return error_B.square(), 2 * error_B.detach().unsqueeze(-1)
    if batch.smoothing:
        classes = logits_BC.shape[-1]
        true_BC = functional.one_hot(labels_B, classes).to(logits_BC.dtype)  # an integer would become float32
        target_BC = true_BC * (1 - batch.smoothing) + batch.smoothing / classes
        df_BC = logits_BC.detach().softmax(-1) - target_BC
        return batch.loss(logits_BC), df_BC - df_BC.mean(-1, keepdim=True)
    true_BC = functional.one_hot(labels_B, logits_BC.shape[-1]).bool()
    lead_BC = (logits_BC - logits_BC.gather(-1, labels_B.unsqueeze(-1))).masked_fill(true_BC, 0.0)
    wrong_BC = lead_BC.detach().softmax(-1).masked_fill(true_BC, 0.0)
    return lead_BC.logsumexp(-1), torch.where(true_BC, -wrong_BC.sum(-1, keepdim=True), wrong_BC)
