"""ScaLA: the task loss plus the divergence that lightweight adversarial noise on the word embeddings causes.

When the noise starts: t_s as given, or earlier, once the training loss has settled.

The paper finds that noise from the first step on is spent on a model that is still far from its final weights, and
leaves open how t_s may be chosen during training. `delay_rule="settled"` is one answer, from numbers that training
has anyway: the mean task loss over windows of half an epoch, L_0, L_1, ... The noise starts after window k when

    L_0 - L_k >= FALLEN * L_0                  the loss has fallen, warm-up is over, and
    L_(k-1) - L_k < SLOWED * (L_0 - L_k)       the last window's share of the fall is small,

and at epoch t_s at the latest. Losses are sums over the whole global batch, equal on all workers, so all of them
start at the same step.

The gradient of the first ascent step from the clean backward pass, to first order in the random start delta_0.

The divergence r is 0 at the clean input and grows with the square of the change of the outputs z:

    r(delta) = dz' F dz + ...,   dz = J delta,   F = diag(p) - p p'   (regression: F = 1)

so its gradient at delta_0 is 2 J' F J delta_0. F is 0 along (1, ..., 1), hence only J' on the C - 1 zero-sum
directions q is needed: with g_q = J' q, both J delta_0 = sum of (g_q . delta_0) q and the result, a sum of g_q, follow.
One of them comes for free: the clean backward computes J' (p - y). Two classes and regression need no other; three
classes need one more pull through the clean graph, which comes before the backward, so that the backward frees the
graph.

Method card
-----------
Objective, with x the weights, y the noise, gamma = Phi(x, xi) the clean prediction:

    min_x  f(x, xi) + lambda * max_{|y|_inf <= omega} r(gamma, Phi(x, xi, y))

- Options: delay t_s (epochs without noise), delay_rule (whether the noise may start earlier: see delay.py), lambda,
  rho (ascent step), omega (radius), sigma (size of the random start), pga_steps T, pga (how the ascent's gradient is
  found: see pga.py), ascent, target, noise, masks, label_gradient.
- Cost of a step with noise, T = 1: 8F against 3F for a plain one (clean forward F, inner forward F and backward
  F for the noise alone, adversarial forward F, backward through both 4F). With delay 5 of 6 epochs the whole run
  costs 1.3 times a plain one. Fused, the clean backward gives the noise: 6F, 7F with three classes.
- Memory is that of a plain step: f is backpropagated before the noisy passes, which frees the clean graph. Where the
  clean graph stays for longer, micro-batches are smaller: by half with label_gradient, which needs both graphs, by an
  eighth with three classes fused, where a vector-Jacobian product runs before that backward and keeps the graph.
- Under autocast the inner passes run in float32, and so does the gamma in them, in a pass of its own (F more): the
  random start moves the outputs by less than bfloat16 can show, and the ascent would follow the rounding. The fused way
  takes no difference of passes and needs none of this.
- The inner passes never communicate, so the cost in messages is that of plain training.
- With `ascent="literal"` and the paper's rho and omega the noise moves r by about 1e-9: what regularises then is the
  disagreement of independent dropout masks. `scala-effective` is the recipe in which the noise itself acts, and
  `two-draws` is the control without noise.
- `masks="off"` runs the whole step, clean pass included, without dropout from t_s on, since gamma enters r.
- Reference: ScaLA, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from scala_lab.methods.base import (
    MicroBatch,
    PlainStep,
    Step,
    StepContext,
    correct_answers,
    normal_noise,
    output_divergence,
    statistics,
    task_loss,
)
from scala_lab.methods.cost import chosen_pga
from scala_lab.models.encoder import Encoder

WINDOWS_PER_EPOCH = 2
FALLEN = 0.05
SLOWED = 0.1


@dataclass
class Settling:
    """Watches the training loss; its fields are plain, so that a saved run goes on watching.

    Attributes:
        window: Steps per window.
        means: Mean loss of each window so far.
        losses: Losses of the window that is open.
        settled: Whether the loss has settled; it stays so.
    """

    window: int
    means: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    settled: bool = False

    @classmethod
    def over(cls, steps_per_epoch: int) -> Settling:
        """With windows of half an epoch, of one step at least."""
        return cls(max(1, steps_per_epoch // WINDOWS_PER_EPOCH))

    def observe(self, loss: float) -> None:
        """Take the mean task loss of a step."""
        if self.settled:
            return
        self.losses.append(loss)
        if len(self.losses) == self.window:
            self.means.append(sum(self.losses) / self.window)
            self.losses = []
            self.settled = self._has_settled()

    def _has_settled(self) -> bool:
        if len(self.means) < 2:
            return False
        first, before, last = self.means[0], self.means[-2], self.means[-1]
        fall = first - last
        return fall >= FALLEN * first and before - last < SLOWED * fall


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


CLEAN, INNER, ADVERSARIAL = 0, 1, -1
"""Dropout draws of the passes; the t-th inner pass is draw INNER + t."""


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
        """Add the micro-batch's gradient."""
        if not self._noised(context):
            return PlainStep()(encoder, batch, context)
        with encoder.dropout_off() if self.masks == "off" else nullcontext():
            return self._regularised(encoder, batch, context, self._fused(encoder))

    def memory_factor(self, encoder: Encoder, context: StepContext) -> float:
        """Two graphs with `label_gradient`; a graph and a backward through it that frees nothing for further VJPs.

        The latter holds a layer's gradients beside all activations: 1.14 to 1.17 times a plain step on three layers,
        less on more.
        """
        if not self._noised(context):
            return 1.0
        if self.label_gradient:
            return 2.0
        further = self.target == "LP" and _outputs(encoder) > 2
        return 8 / 7 if further and self._fused(encoder) else 1.0

    def _noised(self, context: StepContext) -> bool:
        return self.lambda_ != 0 and (context.settled or context.epoch >= self.delay)

    def _fused(self, encoder: Encoder) -> bool:
        return chosen_pga(vars(self), _outputs(encoder), encoder.drops_out) == "fused"

    def _regularised(self, encoder: Encoder, batch: MicroBatch, context: StepContext, fused: bool) -> Tensor:
        with context.clock.phase("clean forward"):
            self._draw_masks(context, CLEAN)
            looked_up_BLD = encoder.embed(batch.inputs)
            # all passes go through this copy, so that the table takes the gradients of all of them at once
            e_BLD = looked_up_BLD.detach().requires_grad_()
            gamma_BC = encoder.logits(e_BLD, batch.inputs)
            f_B, slope_BC = loss_with_slope(gamma_BC, batch.labels, batch.regression)

        further = self._further_vjps(e_BLD, gamma_BC, slope_BC, context) if fused else []
        if not self.label_gradient:
            with context.clock.phase("backward"):
                (f_B.sum() * batch.share).backward()
            # gamma is a constant from here on, and the clean graph is gone before another one is built
            gamma_BC, f_B = gamma_BC.detach(), f_B.detach()

        if fused:
            delta_BLD, usable_B = self._fused_noise(batch, e_BLD, gamma_BC, slope_BC, further, context)
        else:
            delta_BLD, usable_B = self._select_noise(encoder, batch, e_BLD.detach(), gamma_BC.detach(), context)

        with context.clock.phase("adversarial forward"):
            noisy_BLD = e_BLD + delta_BLD
            del delta_BLD, further  # as much memory as embeddings each, which the pass to come can use
            r_B = self._divergence(encoder, batch, context, noisy_BLD, gamma_BC)
            broken_B = ~torch.isfinite(r_B.detach())
            if broken_B.any():
                del r_B
                usable_B = usable_B & ~broken_B
                noisy_BLD = torch.where(usable_B.view(-1, 1, 1), noisy_BLD, e_BLD)
                r_B = self._divergence(encoder, batch, context, noisy_BLD, gamma_BC)
            r_B = torch.where(usable_B, r_B, 0.0)

        with context.clock.phase("backward"):
            g = self.lambda_ * r_B.sum() + (f_B.sum() if self.label_gradient else 0.0)
            (g * batch.share).backward()
            if looked_up_BLD.requires_grad:
                looked_up_BLD.backward(e_BLD.grad)
            return statistics(
                loss=f_B.detach().sum(),
                correct=correct_answers(gamma_BC, batch.labels, batch.regression),
                divergence=r_B.detach().sum(),
                noised=usable_B.sum(),
                skipped=(~usable_B).sum(),
            )

    def _select_noise(
        self, encoder: Encoder, batch: MicroBatch, e_BLD: Tensor, gamma_BC: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor]:
        """The noise y_T of each sample, and which samples have a finite one."""
        usable_B = torch.ones(len(batch.labels), dtype=torch.bool, device=e_BLD.device)
        if self.noise == "none":
            return torch.zeros_like(e_BLD), usable_B
        with context.clock.phase("inner forward" if self.noise == "pga" else "adversarial forward"):
            delta_BLD = self._random_start(batch, e_BLD, context)
        if self.noise == "gaussian":
            return delta_BLD, usable_B
        if encoder.autocast is not None and self.target == "LP":
            gamma_BC = self._precise_label(encoder, batch, e_BLD, context)
        for t in range(self.pga_steps):
            g_BLD = self._inner_gradient(encoder, batch, e_BLD, gamma_BC, delta_BLD, context, t)
            with context.clock.phase("inner backward"):
                usable_B = usable_B & _finite(g_BLD)
                delta_BLD = self._ascend(delta_BLD, _keep(g_BLD, usable_B), batch)
                del g_BLD
        return _keep(delta_BLD, usable_B), usable_B

    def _further_vjps(self, e_BLD: Tensor, gamma_BC: Tensor, slope_BC: Tensor, context: StepContext) -> list[Pulled]:
        """What the fused way needs of the clean graph beside f's own backward, which comes last and frees it."""
        if self.target == "GT":
            return []
        with context.clock.phase("inner backward"):
            return [(q_BC, _vjp(gamma_BC, e_BLD, q_BC)) for q_BC in further_directions(slope_BC)]

    def _fused_noise(
        self,
        batch: MicroBatch,
        e_BLD: Tensor,
        gamma_BC: Tensor,
        slope_BC: Tensor,
        further: list[Pulled],
        context: StepContext,
    ) -> tuple[Tensor, Tensor]:
        """As `_select_noise`, without passes of its own."""
        with context.clock.phase("inner backward"):
            # f's backward, if it has been, left its derivative by the embeddings
            g_BLD = _vjp(gamma_BC, e_BLD, slope_BC) if e_BLD.grad is None else e_BLD.grad / batch.share
            delta_BLD = self._random_start(batch, e_BLD.detach(), context)
            if self.target == "LP":
                g_BLD = divergence_gradient(gamma_BC.detach(), slope_BC, g_BLD, further, delta_BLD)
            usable_B = _finite(g_BLD)
            delta_BLD = self._ascend(delta_BLD, _keep(g_BLD, usable_B), batch)
            return _keep(delta_BLD, usable_B), usable_B

    def _random_start(self, batch: MicroBatch, e_BLD: Tensor, context: StepContext) -> Tensor:
        """Gaussian noise of size sigma (without ascent: omega), 0 on padding."""
        size = self.omega if self.noise == "gaussian" else self.sigma
        width, dtype = e_BLD.shape[-1], e_BLD.dtype
        delta_BLD = normal_noise(context.seed, context.step, batch.samples, batch.positions_BL, width, dtype)
        return delta_BLD.mul_(size).mul_(batch.mask_BL1)

    def _precise_label(self, encoder: Encoder, batch: MicroBatch, e_BLD: Tensor, context: StepContext) -> Tensor:
        """The label gamma as the inner passes would compute it: in full precision, with the clean pass's masks."""
        with context.clock.phase("inner forward"), torch.no_grad(), encoder.full_precision():
            self._draw_masks(context, CLEAN)
            return encoder.logits(e_BLD, batch.inputs)

    def _inner_gradient(
        self,
        encoder: Encoder,
        batch: MicroBatch,
        e_BLD: Tensor,
        gamma_BC: Tensor,
        delta_BLD: Tensor,
        context: StepContext,
        t: int,
    ) -> Tensor:
        """d/d_delta of the SUM over samples: a sample's noise must not depend on the batch. No weight gradients."""
        delta_BLD = delta_BLD.detach().requires_grad_()
        with context.clock.phase("inner forward"), encoder.full_precision():
            self._draw_masks(context, INNER + t)
            logits_BC = encoder.logits(e_BLD + delta_BLD, batch.inputs)
            if self.target == "GT":
                raised = task_loss(logits_BC, batch.labels, batch.regression).sum()
            else:
                raised = output_divergence(gamma_BC, logits_BC, batch.regression).sum()
        with context.clock.phase("inner backward"):
            return torch.autograd.grad(raised, delta_BLD)[0]

    def _ascend(self, delta_BLD: Tensor, g_BLD: Tensor, batch: MicroBatch) -> Tensor:
        """One projected ascent step: clip(delta + rho * direction, -omega, omega), 0 on padding."""
        if self.ascent == "normalized":
            largest_BL1 = g_BLD.abs().amax(-1, keepdim=True)
            g_BLD = g_BLD / largest_BL1.clamp_min(torch.finfo(g_BLD.dtype).tiny)
        moved_BLD = (self.rho * g_BLD).add_(delta_BLD)
        return moved_BLD.clamp_(-self.omega, self.omega).mul_(batch.mask_BL1)

    def _divergence(
        self, encoder: Encoder, batch: MicroBatch, context: StepContext, noisy_BLD: Tensor, label_BC: Tensor
    ) -> Tensor:
        self._draw_masks(context, ADVERSARIAL)
        return output_divergence(label_BC, encoder.logits(noisy_BLD, batch.inputs), batch.regression)

    def _draw_masks(self, context: StepContext, draw: int) -> None:
        context.seed_dropout(CLEAN if self.masks == "shared" else draw)


def _outputs(encoder: Encoder) -> int:
    """Outputs of the head."""
    return encoder.model.config.num_labels  # type: ignore[return-value, union-attr]


def _vjp(gamma_BC: Tensor, e_BLD: Tensor, q_BC: Tensor) -> Tensor:
    """J' q of each sample, for the derivative J of its outputs by its embeddings; the graph stays."""
    return torch.autograd.grad(gamma_BC, e_BLD, q_BC, retain_graph=True)[0]


def _finite(values_BLD: Tensor) -> Tensor:
    """Which samples have finite values only."""
    return torch.isfinite(torch.linalg.vector_norm(values_BLD.flatten(1), torch.inf, dim=1))


def _keep(values_BLD: Tensor, usable_B: Tensor) -> Tensor:
    """The values of usable samples, 0 for the others (also where they are not finite)."""
    return torch.where(usable_B.view(-1, 1, 1), values_BLD, 0.0)
