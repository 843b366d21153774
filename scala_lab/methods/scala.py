"""ScaLA: the task loss plus the divergence that lightweight adversarial noise on the word embeddings causes.

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
- The inner passes never communicate, so the cost in messages is that of plain training.
- With `ascent="literal"` and the paper's rho and omega the noise moves r by about 1e-9: what regularises then is the
  disagreement of independent dropout masks. `scala-effective` is the recipe in which the noise itself acts, and
  `rdrop` is the control without noise.
- `masks="off"` runs the whole step, clean pass included, without dropout from t_s on, since gamma enters r.
- Reference: ScaLA, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scala_lab.methods.fused import divergence_gradient, loss_with_slope, needs_graph
from scala_lab.methods.pga import chosen_pga
from scala_lab.methods.plain import PlainStep
from scala_lab.methods.random_numbers import normal_noise
from scala_lab.methods.step import MicroBatch, Moment, statistics
from scala_lab.methods.task_loss import correct_answers, output_divergence, task_loss
from scala_lab.models.encoder import Encoder

CLEAN, INNER, ADVERSARIAL = 0, 1, -1
"""Dropout draws of the passes; the t-th inner pass is draw INNER + t."""


@dataclass(frozen=True)
class ScalaStep:
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

    def __call__(self, encoder: Encoder, batch: MicroBatch, now: Moment) -> Tensor:
        """Add the micro-batch's gradient."""
        if (now.epoch < self.delay and not now.settled) or self.lambda_ == 0:
            return PlainStep()(encoder, batch, now)
        if self.masks == "off":
            with encoder.dropout_off():
                return self._regularised(encoder, batch, now)
        return self._regularised(encoder, batch, now)

    def _regularised(self, encoder: Encoder, batch: MicroBatch, now: Moment) -> Tensor:
        with now.clock.phase("clean forward"):
            self._draw_masks(now, CLEAN)
            looked_up_BLD = encoder.embed(batch.inputs)
            # all passes go through this copy, so that the table takes the gradients of all of them at once
            e_BLD = looked_up_BLD.detach().requires_grad_()
            gamma_BC = encoder.logits(e_BLD, batch.inputs)

        if chosen_pga(vars(self), gamma_BC.shape[-1], encoder.drops_out) == "fused":
            f, delta_BLD, usable_B = self._fused_noise(batch, e_BLD, gamma_BC, now)
        else:
            f = task_loss(gamma_BC, batch.labels, batch.regression).sum()
            delta_BLD, usable_B = self._select_noise(encoder, batch, e_BLD.detach(), gamma_BC.detach(), now)

        label_BC = gamma_BC if self.label_gradient else gamma_BC.detach()
        with now.clock.phase("adversarial forward"):
            r_B = self._divergence(encoder, batch, now, e_BLD + delta_BLD, label_BC)
            broken_B = ~torch.isfinite(r_B.detach())
            if broken_B.any():
                usable_B = usable_B & ~broken_B
                delta_BLD = _keep(delta_BLD, usable_B)
                r_B = self._divergence(encoder, batch, now, e_BLD + delta_BLD, label_BC)
            r_B = torch.where(usable_B, r_B, 0.0)

        with now.clock.phase("backward"):
            g = self.lambda_ * r_B.sum() + (f if f.requires_grad else 0.0)  # a fused f has had its backward
            (g * batch.share).backward()
            if looked_up_BLD.requires_grad:
                looked_up_BLD.backward(e_BLD.grad)
            return statistics(
                loss=f.detach(),
                correct=correct_answers(gamma_BC, batch.labels, batch.regression),
                divergence=r_B.detach().sum(),
                noised=usable_B.sum(),
                skipped=(~usable_B).sum(),
            )

    def _select_noise(
        self, encoder: Encoder, batch: MicroBatch, e_BLD: Tensor, gamma_BC: Tensor, now: Moment
    ) -> tuple[Tensor, Tensor]:
        """The noise y_T of each sample, and which samples have a finite one."""
        usable_B = torch.ones(len(batch.labels), dtype=torch.bool, device=e_BLD.device)
        if self.noise == "none":
            return torch.zeros_like(e_BLD), usable_B
        with now.clock.phase("inner forward" if self.noise == "pga" else "adversarial forward"):
            delta_BLD = self._random_start(batch, e_BLD, now)
        if self.noise == "gaussian":
            return delta_BLD, usable_B
        for t in range(self.pga_steps):
            g_BLD = self._inner_gradient(encoder, batch, e_BLD, gamma_BC, delta_BLD, now, t)
            with now.clock.phase("inner backward"):
                usable_B = usable_B & _finite(g_BLD)
                delta_BLD = self._ascend(delta_BLD, _keep(g_BLD, usable_B), batch)
        return _keep(delta_BLD, usable_B), usable_B

    def _fused_noise(
        self, batch: MicroBatch, e_BLD: Tensor, gamma_BC: Tensor, now: Moment
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The task loss, backpropagated unless the label's gradient needs its graph, and the noise that falls out."""
        with now.clock.phase("clean forward"):
            f_B, slope_BC = loss_with_slope(gamma_BC, batch.labels, batch.regression)
        pulls_later = self.label_gradient or (self.target == "LP" and needs_graph(slope_BC))
        if self.label_gradient:
            f = f_B.sum()
            with now.clock.phase("inner backward"):
                pulled_BLD = torch.autograd.grad(f, e_BLD, retain_graph=True)[0]
        else:
            f = f_B.detach().sum()
            with now.clock.phase("backward"):
                (f_B.sum() * batch.share).backward(retain_graph=pulls_later)
                assert e_BLD.grad is not None
                pulled_BLD = e_BLD.grad / batch.share

        def pull(seed_BC: Tensor) -> Tensor:
            return torch.autograd.grad(gamma_BC, e_BLD, seed_BC, retain_graph=True)[0]

        with now.clock.phase("inner backward"):
            delta_BLD = self._random_start(batch, e_BLD.detach(), now)
            if self.target == "LP":
                pulled_BLD = divergence_gradient(gamma_BC.detach(), slope_BC, pulled_BLD, delta_BLD, pull)
            usable_B = _finite(pulled_BLD)
            delta_BLD = self._ascend(delta_BLD, _keep(pulled_BLD, usable_B), batch)
        return f, _keep(delta_BLD, usable_B), usable_B

    def _random_start(self, batch: MicroBatch, e_BLD: Tensor, now: Moment) -> Tensor:
        """Gaussian noise of size sigma (without ascent: omega), 0 on padding."""
        size = self.omega if self.noise == "gaussian" else self.sigma
        _, length, width = e_BLD.shape
        delta_BLD = normal_noise(now.seed, now.step, batch.samples, length, width, e_BLD.dtype)
        return delta_BLD.mul_(size).mul_(batch.mask_BL1)

    def _inner_gradient(
        self,
        encoder: Encoder,
        batch: MicroBatch,
        e_BLD: Tensor,
        gamma_BC: Tensor,
        delta_BLD: Tensor,
        now: Moment,
        t: int,
    ) -> Tensor:
        """d/d_delta of the SUM over samples: a sample's noise must not depend on the batch. No weight gradients."""
        delta_BLD = delta_BLD.detach().requires_grad_()
        with now.clock.phase("inner forward"):
            self._draw_masks(now, INNER + t)
            logits_BC = encoder.logits(e_BLD + delta_BLD, batch.inputs)
            if self.target == "GT":
                raised = task_loss(logits_BC, batch.labels, batch.regression).sum()
            else:
                raised = output_divergence(gamma_BC, logits_BC, batch.regression).sum()
        with now.clock.phase("inner backward"):
            return torch.autograd.grad(raised, delta_BLD)[0]

    def _ascend(self, delta_BLD: Tensor, g_BLD: Tensor, batch: MicroBatch) -> Tensor:
        """One projected ascent step: clip(delta + rho * direction, -omega, omega), 0 on padding."""
        if self.ascent == "normalized":
            largest_BL1 = g_BLD.abs().amax(-1, keepdim=True)
            g_BLD = g_BLD / largest_BL1.clamp_min(torch.finfo(g_BLD.dtype).tiny)
        moved_BLD = (self.rho * g_BLD).add_(delta_BLD)
        return moved_BLD.clamp_(-self.omega, self.omega).mul_(batch.mask_BL1)

    def _divergence(
        self, encoder: Encoder, batch: MicroBatch, now: Moment, noisy_BLD: Tensor, label_BC: Tensor
    ) -> Tensor:
        self._draw_masks(now, ADVERSARIAL)
        return output_divergence(label_BC, encoder.logits(noisy_BLD, batch.inputs), batch.regression)

    def _draw_masks(self, now: Moment, draw: int) -> None:
        now.seed_dropout(CLEAN if self.masks == "shared" else draw)


def _finite(values_BLD: Tensor) -> Tensor:
    """Which samples have finite values only."""
    return torch.isfinite(torch.linalg.vector_norm(values_BLD.flatten(1), torch.inf, dim=1))


def _keep(values_BLD: Tensor, usable_B: Tensor) -> Tensor:
    """The values of usable samples, 0 for the others (also where they are not finite)."""
    return torch.where(usable_B.view(-1, 1, 1), values_BLD, 0.0)
