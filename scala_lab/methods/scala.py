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

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scala_lab.methods.fused import Pulled, divergence_gradient, further_directions, loss_with_slope
from scala_lab.methods.pga import chosen_pga
from scala_lab.methods.plain import PlainStep
from scala_lab.methods.random_numbers import normal_noise
from scala_lab.methods.step import MicroBatch, Moment, Step, statistics
from scala_lab.methods.task_loss import correct_answers, output_divergence, task_loss
from scala_lab.models.encoder import Encoder

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

    def __call__(self, encoder: Encoder, batch: MicroBatch, now: Moment) -> Tensor:
        """Add the micro-batch's gradient."""
        if not self._noised(now):
            return PlainStep()(encoder, batch, now)
        with encoder.dropout_off() if self.masks == "off" else nullcontext():
            return self._regularised(encoder, batch, now, self._fused(encoder))

    def memory_factor(self, encoder: Encoder, now: Moment) -> float:
        """Two graphs with `label_gradient`; a graph and a backward through it that frees nothing for further VJPs.

        The latter holds a layer's gradients beside all activations: 1.14 to 1.17 times a plain step on three layers,
        less on more.
        """
        if not self._noised(now):
            return 1.0
        if self.label_gradient:
            return 2.0
        further = self.target == "LP" and _outputs(encoder) > 2
        return 8 / 7 if further and self._fused(encoder) else 1.0

    def _noised(self, now: Moment) -> bool:
        return self.lambda_ != 0 and (now.settled or now.epoch >= self.delay)

    def _fused(self, encoder: Encoder) -> bool:
        return chosen_pga(vars(self), _outputs(encoder), encoder.drops_out) == "fused"

    def _regularised(self, encoder: Encoder, batch: MicroBatch, now: Moment, fused: bool) -> Tensor:
        with now.clock.phase("clean forward"):
            self._draw_masks(now, CLEAN)
            looked_up_BLD = encoder.embed(batch.inputs)
            # all passes go through this copy, so that the table takes the gradients of all of them at once
            e_BLD = looked_up_BLD.detach().requires_grad_()
            gamma_BC = encoder.logits(e_BLD, batch.inputs)
            f_B, slope_BC = loss_with_slope(gamma_BC, batch.labels, batch.regression)

        further = self._further_vjps(e_BLD, gamma_BC, slope_BC, now) if fused else []
        if not self.label_gradient:
            with now.clock.phase("backward"):
                (f_B.sum() * batch.share).backward()
            # gamma is a constant from here on, and the clean graph is gone before another one is built
            gamma_BC, f_B = gamma_BC.detach(), f_B.detach()

        if fused:
            delta_BLD, usable_B = self._fused_noise(batch, e_BLD, gamma_BC, slope_BC, further, now)
        else:
            delta_BLD, usable_B = self._select_noise(encoder, batch, e_BLD.detach(), gamma_BC.detach(), now)

        with now.clock.phase("adversarial forward"):
            noisy_BLD = e_BLD + delta_BLD
            del delta_BLD, further  # as much memory as embeddings each, which the pass to come can use
            r_B = self._divergence(encoder, batch, now, noisy_BLD, gamma_BC)
            broken_B = ~torch.isfinite(r_B.detach())
            if broken_B.any():
                del r_B
                usable_B = usable_B & ~broken_B
                noisy_BLD = torch.where(usable_B.view(-1, 1, 1), noisy_BLD, e_BLD)
                r_B = self._divergence(encoder, batch, now, noisy_BLD, gamma_BC)
            r_B = torch.where(usable_B, r_B, 0.0)

        with now.clock.phase("backward"):
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
        if encoder.autocast is not None and self.target == "LP":
            gamma_BC = self._precise_label(encoder, batch, e_BLD, now)
        for t in range(self.pga_steps):
            g_BLD = self._inner_gradient(encoder, batch, e_BLD, gamma_BC, delta_BLD, now, t)
            with now.clock.phase("inner backward"):
                usable_B = usable_B & _finite(g_BLD)
                delta_BLD = self._ascend(delta_BLD, _keep(g_BLD, usable_B), batch)
                del g_BLD
        return _keep(delta_BLD, usable_B), usable_B

    def _further_vjps(self, e_BLD: Tensor, gamma_BC: Tensor, slope_BC: Tensor, now: Moment) -> list[Pulled]:
        """What the fused way needs of the clean graph beside f's own backward, which comes last and frees it."""
        if self.target == "GT":
            return []
        with now.clock.phase("inner backward"):
            return [(q_BC, _vjp(gamma_BC, e_BLD, q_BC)) for q_BC in further_directions(slope_BC)]

    def _fused_noise(
        self,
        batch: MicroBatch,
        e_BLD: Tensor,
        gamma_BC: Tensor,
        slope_BC: Tensor,
        further: list[Pulled],
        now: Moment,
    ) -> tuple[Tensor, Tensor]:
        """As `_select_noise`, without passes of its own."""
        with now.clock.phase("inner backward"):
            # f's backward, if it has been, left its derivative by the embeddings
            g_BLD = _vjp(gamma_BC, e_BLD, slope_BC) if e_BLD.grad is None else e_BLD.grad / batch.share
            delta_BLD = self._random_start(batch, e_BLD.detach(), now)
            if self.target == "LP":
                g_BLD = divergence_gradient(gamma_BC.detach(), slope_BC, g_BLD, further, delta_BLD)
            usable_B = _finite(g_BLD)
            delta_BLD = self._ascend(delta_BLD, _keep(g_BLD, usable_B), batch)
            return _keep(delta_BLD, usable_B), usable_B

    def _random_start(self, batch: MicroBatch, e_BLD: Tensor, now: Moment) -> Tensor:
        """Gaussian noise of size sigma (without ascent: omega), 0 on padding."""
        size = self.omega if self.noise == "gaussian" else self.sigma
        width, dtype = e_BLD.shape[-1], e_BLD.dtype
        delta_BLD = normal_noise(now.seed, now.step, batch.samples, batch.positions_BL, width, dtype)
        return delta_BLD.mul_(size).mul_(batch.mask_BL1)

    def _precise_label(self, encoder: Encoder, batch: MicroBatch, e_BLD: Tensor, now: Moment) -> Tensor:
        """The label gamma as the inner passes would compute it: in full precision, with the clean pass's masks."""
        with now.clock.phase("inner forward"), torch.no_grad(), encoder.full_precision():
            self._draw_masks(now, CLEAN)
            return encoder.logits(e_BLD, batch.inputs)

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
        with now.clock.phase("inner forward"), encoder.full_precision():
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
