"""What all step functions share: micro-batch, context, statistics, random numbers, delay rule; and the plain step."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scala_lab.clock import Clock
from scala_lab.divergence import correct_answers, task_loss
from scala_lab.methods.recipes import STEP_FUNCTIONS, absolute_radii, find_recipe
from scala_lab.models.encoder import Encoder

STATISTICS = ("loss", "correct", "divergence", "noised", "skipped")
"""Sums over samples that a step function returns: task loss, correct predictions (classification), divergence r,
samples with a noise term, samples whose noise term was left out because it was not finite."""

WINDOWS_PER_EPOCH, MIN_FALL, MAX_LAST_SHARE = 2, 0.05, 0.1  # constants of the delay rule, see `Settling`


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go through the model together."""

    inputs: Mapping[str, Tensor]  # of the model: input_ids, attention_mask and, where it has them, token_type_ids
    labels: Tensor  # class indices, or scores for regression
    samples: Tensor  # row number of each sample in the training set: its noise is a function of it
    share: float  # 1/B with the true size B of the global batch (times the loss scale of fp16): shares sum to the mean
    regression: bool
    smoothing: float = 0.0  # of the labels of classes

    def loss(self, logits_BC: Tensor) -> Tensor:
        """Return the task loss of each sample."""
        return task_loss(logits_BC, self.labels, self.regression, self.smoothing)

    @property
    def positions_BL(self) -> Tensor:
        """Position of each token in its row, not counting left padding; (1, length) if there is none."""
        mask_BL = self.inputs["attention_mask"]
        positions_1L = torch.arange(mask_BL.shape[1], device=mask_BL.device).unsqueeze(0)
        if bool(mask_BL[:, 0].all()):
            return positions_1L
        return positions_1L - (mask_BL.cumsum(1) == 0).sum(1, keepdim=True)

    @property
    def mask_BL1(self) -> Tensor:
        """1 on real tokens, 0 on padding."""
        return self.inputs["attention_mask"].unsqueeze(-1)


@dataclass(frozen=True)
class StepContext:
    """Where in the run a micro-batch is. All randomness derives from it, so that a resumed run repeats it."""

    seed: int  # of the run
    step: int  # global, 0-based
    epoch: float  # epochs done, with fractions
    part: int  # index of this micro-batch among those of all workers in the step
    clock: Clock  # measures the time of each phase
    settled: bool = False  # whether the delay rule lets the noise start before t_s
    perturbed: bool = False  # whether the step's `perturb` has moved the weights

    def seed_dropout(self, draw: int = 0) -> None:
        """Seed the dropout masks of this micro-batch; equal draws give equal masks."""
        seed = mix(self.seed, self.step, self.part, draw)
        # not torch.manual_seed, which takes a millisecond to record the call stack for devices that are not in use
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


class Step:
    """Adds the gradient of a micro-batch, weighted by its share, to the parameters' `.grad`.

    A step may take its gradient at other weights. It then has an `ascent_pass`, a step that runs first on a group of
    `ascent_samples`, and `perturb`, which moves the weights by that gradient.
    """

    ascent_pass: Step | None = None

    @property
    def ascent_samples(self) -> int | None:
        """Number of samples that share one ascent; None for the whole batch."""
        return None

    def perturb(self, parameters: Sequence[Tensor]) -> bool:
        """Move the weights, given the ascent's gradient in `.grad`; return False where it is no use."""
        raise NotImplementedError

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the gradient and return the micro-batch's `STATISTICS`."""
        raise NotImplementedError

    def memory_factor(self, encoder: Encoder, context: StepContext) -> float:
        """Return the peak activation memory per sample relative to a plain step, by which micro-batches shrink."""
        return 1.0


@dataclass(frozen=True)
class PlainStep(Step):
    """Gradient of (1/B) * sum of the task loss; cost 3F, when a backward counts as two forward passes F."""

    phases: tuple[str, str] = ("clean forward", "backward")

    def __call__(self, encoder: Encoder, batch: MicroBatch, context: StepContext) -> Tensor:
        """Add the micro-batch's gradient."""
        context.seed_dropout()
        forward, backward = self.phases
        with context.clock.phase(forward):
            logits = encoder.logits(encoder.embed(batch.inputs), batch.inputs)
            loss = batch.loss(logits).sum()
            sums = statistics(loss=loss.detach(), correct=correct_answers(logits, batch.labels, batch.regression))
        with context.clock.phase(backward):
            (loss * batch.share).backward()
        return sums


def build_step(method: str, options: Mapping[str, Any], embedding_norm: float = 1.0, width: int = 1) -> Step:
    """Return the step function of a method with its options; see `absolute_radii` for the encoder's scale."""
    module, function = STEP_FUNCTIONS[find_recipe(method).step].split(":")
    return getattr(importlib.import_module(module), function)(**absolute_radii(options, embedding_norm, width))


def statistics(**sums: Tensor | float) -> Tensor:
    """Return the sums as a vector in the order of `STATISTICS`; those not given are 0."""
    reference = next(value for value in sums.values() if isinstance(value, Tensor))
    return torch.stack([torch.as_tensor(sums.get(name, 0.0), device=reference.device).double() for name in STATISTICS])


@dataclass
class Settling:
    """The rule `delay_rule="settled"`: start the noise once the training loss has settled, at t_s at the latest.

    The paper leaves open how t_s may be chosen during training. This rule needs only the mean task loss L_0, L_1, ...
    of windows of half an epoch. The noise starts after window k when

        L_0 - L_k >= MIN_FALL * L_0                       the loss has fallen, so warm-up is over, and
        L_(k-1) - L_k < MAX_LAST_SHARE * (L_0 - L_k)      the last window has a small share in the fall.

    Losses are those of the global batch, equal on all workers. The fields are saved with the state of a run.
    """

    window: int  # steps
    means: list[float] = field(default_factory=list)  # L_0, L_1, ... of the complete windows
    losses: list[float] = field(default_factory=list)  # of the current window
    settled: bool = False  # once true, it stays true

    @classmethod
    def over(cls, steps_per_epoch: int) -> Settling:
        """Use windows of half an epoch, at least one step long."""
        return cls(max(1, steps_per_epoch // WINDOWS_PER_EPOCH))

    def observe(self, loss: float) -> None:
        """Add the mean task loss of a step."""
        if self.settled:
            return
        self.losses.append(loss)
        if len(self.losses) < self.window:
            return
        self.means.append(sum(self.losses) / self.window)
        self.losses = []
        fall = self.means[0] - self.means[-1]
        if len(self.means) > 1 and fall >= MIN_FALL * self.means[0]:
            self.settled = self.means[-2] - self.means[-1] < MAX_LAST_SHARE * fall


_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """Hash integers into one of 63 bits (splitmix64 over the sequence)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK64)) + _GOLDEN & _MASK64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK64
        state = state ^ (state >> 31)
    return state >> 1


def uniform_noise(seed: int, step: int, rows_B: Tensor, positions_BL: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return numbers in (-1, 1), shape (samples, length, width), each a hash of its coordinates and nothing else.

    A sequential stream would make a sample's noise depend on its batch and on the number of workers. Here seed, step,
    row and position are mixed into one key per token (splitmix64), and each coordinate of the token's vector is a
    32-bit finaliser of key and index (murmur3). For rows (`samples`) and positions see `MicroBatch`.
    """
    keys_BL = _splitmix(rows_B.to(torch.int64).unsqueeze(1) * _signed(_GOLDEN) + mix(seed, step))
    keys_BL = _splitmix(keys_BL + positions_BL * _signed(_GOLDEN))
    low_BL, high_BL = keys_BL.to(torch.int32), (keys_BL >> 32).to(torch.int32)
    bits = low_BL.unsqueeze(-1) + torch.arange(width, device=rows_B.device, dtype=torch.int32) * -1640531535
    bits.bitwise_xor_(_shift_right(bits, 16)).mul_(-2048144789)
    bits.bitwise_xor_(_shift_right(bits, 13)).add_(high_BL.unsqueeze(-1)).mul_(-1028477387)
    bits.bitwise_xor_(_shift_right(bits, 16))
    # a signed 32-bit integer, moved by half a unit so that neither an end nor 0 can occur
    return (bits.to(dtype) + 0.5) * (1.0 / 2**31)


def normal_noise(seed: int, step: int, rows_B: Tensor, positions_BL: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers, by the inverse error function of `uniform_noise`."""
    uniform_BLD = uniform_noise(seed, step, rows_B, positions_BL, width, dtype)
    limit = 1.0 - torch.finfo(dtype).eps
    return uniform_BLD.clamp_(-limit, limit).erfinv_().mul_(math.sqrt(2.0))


def _splitmix(state: Tensor) -> Tensor:
    state = (state ^ _shift_right(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift_right(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift_right(state, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift logically: torch's own shift keeps the sign."""
    return (bits >> count).bitwise_and_((1 << (8 * bits.element_size() - count)) - 1)


def _signed(number: int) -> int:
    """Return an unsigned 64-bit constant as the int64 of the same bits."""
    return number - (1 << 64) if number >> 63 else number
