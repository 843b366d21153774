"""The one loop that every method runs through: gradient, all-reduce, update, evaluation, state.

Logits of every row of a split, computed by all workers, each row exactly once.

All gradients in one flat buffer, with all else that workers tell one another at its end: one message per step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from scala_lab.batches import BatchPlan, part_cost
from scala_lab.clock import Clock
from scala_lab.config import RunSpec, planned_steps
from scala_lab.data.tasks import Task, compute_metrics
from scala_lab.data.tokens import Padding, TokenSplit, collate, cut_by_length
from scala_lab.errors import UserError
from scala_lab.methods.base import STATISTICS, MicroBatch, StepContext, build_step
from scala_lab.methods.cost import chosen_pga
from scala_lab.methods.scala import Settling
from scala_lab.models.encoder import Encoder
from scala_lab.models.loading import hidden_size, to_float64
from scala_lab.optim.build import build_optimizer, default_rate, rate_factor, scaled_rate
from scala_lab.training.distributed import World
from scala_lab.training.faults import name_workers
from scala_lab.training.precision import AUTOCAST, LossScale
from scala_lab.training.preparation import Prepared, load_model
from scala_lab.training.progress import Reporter
from scala_lab.training.run_dir import RunWriter, latest_state, load_state, save_state

if TYPE_CHECKING:
    from scala_lab.training.distributed import World


def evaluate_split(
    encoder: Encoder, split: TokenSplit, task: Task, micro_batch: int, padding: Padding, world: World
) -> dict[str, float] | None:
    """Metrics of a split on the first worker; None on the others."""
    logits = predict_split(encoder, split, micro_batch, padding, world)
    return None if logits is None else compute_metrics(task, logits, split.labels)


def predict_split(
    encoder: Encoder, split: TokenSplit, micro_batch: int, padding: Padding, world: World
) -> np.ndarray | None:
    """Logits in the order of the rows, on the first worker; None on the others.

    Rows are sorted by length and cut before they are dealt, so which rows share a batch, and with it every
    bit of the result, does not depend on the number of workers.
    """
    mine = cut_by_length(split, np.arange(len(split)), 2 * micro_batch, padding)[world.rank :: world.size]
    with encoder.dropout_off(), torch.inference_mode():
        outputs = [_predict(encoder, split, rows, padding, world) for rows in mine]
    gathered = world.gather(list(zip(mine, outputs, strict=True)))
    if gathered is None:
        return None
    pairs = [pair for part in gathered for pair in part]
    logits = np.empty((len(split), pairs[0][1].shape[1]), dtype=pairs[0][1].dtype)
    for rows, output in pairs:
        logits[rows] = output
    return logits


def _predict(encoder: Encoder, split: TokenSplit, rows: np.ndarray, padding: Padding, world: World) -> np.ndarray:
    batch = collate(split, rows, padding)
    inputs = {name: tensor.to(world.device) for name, tensor in batch.items() if name != "labels"}
    return encoder.predict(inputs).cpu().numpy()


class GradientBuffer:
    """A flat tensor whose slices are the parameters' `.grad`.

    Micro-batches add into it in place, the all-reduce sums it over workers in one call, and the gradient's
    norm is one reduction. Its tail costs no message of its own:

    - the sums of `STATISTICS`;
    - for each parameter, how many workers' backward passes reached it. One that none reached has no gradient, which
      is not a gradient of 0: optimizers neither decay it nor touch its moments;
    - for each worker, whether its own loss or gradient was not finite.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], workers: int = 1) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        _check(self.parameters)
        first = self.parameters[0]
        sizes = [parameter.numel() for parameter in self.parameters]
        tail = (len(STATISTICS), len(sizes), workers)
        self.flat = torch.zeros(sum(sizes) + sum(tail), dtype=first.dtype, device=first.device)
        self.gradients, self._tail = self.flat.split([sum(sizes), sum(tail)])
        self._statistics, self._reached, self._broken = self._tail.split(tail)
        self._slices = [
            part.view_as(parameter)
            for part, parameter in zip(self.gradients.split(sizes), self.parameters, strict=True)
        ]
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(self.parameters)}
        self._marks = [False] * len(sizes)
        for parameter, gradient in zip(self.parameters, self._slices, strict=True):
            parameter.grad = gradient
            parameter.register_hook(partial(_mark_if_any, self._marks, self._numbers[parameter]))

    def mark(self, parameter: Tensor) -> None:
        """Note that a parameter has a gradient in this step; for functions that add to `.grad` past autograd."""
        number = self._numbers.get(parameter)
        if number is not None:
            self._marks[number] = True

    def clear(self) -> None:
        """Start a new step."""
        self.flat.zero_()
        self._marks[:] = [False] * len(self._marks)

    def count(self, statistics: Tensor) -> None:
        """Add a micro-batch's statistics."""
        self._statistics += statistics.to(self._statistics)

    def sum_over(self, world: World) -> None:
        """Replace everything by its sum over all workers."""
        self._reached.copy_(torch.tensor(self._marks))
        if world.size > 1:
            loss, norm = self._statistics[STATISTICS.index("loss")], self.gradients.norm()
            self._broken[world.rank] = ~loss.isfinite() + 2 * ~norm.isfinite()
        world.sum(self.flat)
        self.__dict__.pop("_sums", None)

    @cached_property
    def _sums(self) -> list[float]:
        """The tail, brought from the device once per step."""
        return self._tail.tolist()

    def statistics(self) -> dict[str, float]:
        """The sums over all samples of the step, by name."""
        return dict(zip(STATISTICS, self._sums, strict=False))

    def divide(self, divisor: float) -> None:
        """Undo the scale of a loss."""
        self.gradients.div_(divisor)

    def clip(self, most: float) -> float:
        """The gradient's norm; when `most` is positive and smaller, the gradient is scaled down to it.

        The factor is that of torch.nn.utils.clip_grad_norm_.
        """
        norm = float(self.gradients.norm())
        if 0 < most < norm + 1e-6:
            self.gradients.mul_(most / (norm + 1e-6))
        return norm

    @contextmanager
    def only_reached(self) -> Iterator[None]:
        """For an optimizer's step: parameters that no backward pass of any worker has reached have no `.grad`."""
        reached = self._sums[len(STATISTICS) :][: len(self.parameters)]
        hidden = [number for number, count in enumerate(reached) if not count]
        for number in hidden:
            self.parameters[number].grad = None
        try:
            yield
        finally:
            for number in hidden:
                self.parameters[number].grad = self._slices[number]

    def describe_broken(self, norm: float) -> str:
        """What is not finite, and on which workers as far as each could see it itself.

        Args:
            norm: The gradient's, from `clip`.
        """
        flags = [round(flag) for flag in self._sums[len(STATISTICS) + len(self.parameters) :]]
        found = [
            f"{name_workers([rank for rank, flag in enumerate(flags) if flag == kind])}: {_NOT_FINITE[kind]}"
            for kind in sorted(set(flags) - {0})
        ]
        if found:
            return "; ".join(found)
        loss_broken = not math.isfinite(self.statistics()["loss"])
        return _NOT_FINITE[loss_broken + 2 * (not math.isfinite(norm))]


def _mark_if_any(marks: list[bool], number: int, gradient: Tensor | None) -> None:
    """Hear from autograd that a backward pass has come to a parameter, with a gradient or with none for it."""
    if gradient is not None:
        marks[number] = True


_NOT_FINITE = {
    1: "the loss is not finite",
    2: "the gradient is not finite",
    3: "the loss and the gradient are not finite",
}


def _check(parameters: list[nn.Parameter]) -> None:
    """Refuse what cannot be trained in one buffer."""
    if not parameters:
        raise UserError("the model has no trainable parameter: all of them are frozen")
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    if len(kinds) > 1:
        raise UserError(f"the model's parameters are in {' and '.join(kinds)}: training needs all of them in one")


@dataclass
class Progress:
    """What has happened so far; saved with the state, so that a resumed run goes on counting."""

    steps_done: int = 0
    samples: int = 0
    tokens: int = 0
    noised: int = 0
    skipped: int = 0
    noise_start: float | None = None
    settling: dict[str, Any] | None = None
    loss_scale: dict[str, Any] | None = None
    skipped_steps: int = 0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    best: dict[str, Any] | None = None


class Training:
    """One worker's part of a run."""

    def __init__(self, spec: RunSpec, prepared: Prepared, world: World) -> None:
        self.spec, self.data, self.world = spec, prepared, world
        self.model, self.admission = load_model(spec, prepared)
        self.model.to(world.device)  # type: ignore[arg-type]
        if spec.machine.precision == "float64":
            to_float64(self.model)
        world.share_from_leader([tensor.data for tensor in self.model.parameters()])
        self.encoder = self.admission.encoder(self.model, AUTOCAST.get(spec.machine.precision))
        self.word_table: torch.Tensor = self.model.get_input_embeddings().weight  # type: ignore[assignment]
        self.step_function = build_step(spec.recipe.method, spec.recipe.options)
        self.pga = chosen_pga(spec.recipe.options, prepared.task.outputs, self.encoder.drops_out)
        width = hidden_size(self.model)
        self.rate = peak_rate(spec, width)
        self.gradient = GradientBuffer(self.model.parameters(), world.size)
        self.optimizer = build_optimizer(self.model, spec.optim, self.rate)
        self.loss_scale = LossScale() if spec.machine.precision == "fp16" else None
        self.plan = BatchPlan(
            prepared.train.lengths,
            spec.batches.batch_size,
            spec.batches.micro_batch,
            world.size,
            spec.seed,
            part_cost(width),
            equal_lengths=self.admission.padding.side == "none",
        )
        self.steps = planned_steps(spec, len(prepared.train))
        self.settling = Settling.over(self.plan.steps_per_epoch) if spec.recipe.delay_rule == "settled" else None
        self.clock = Clock(world.device.type)
        self.progress = Progress()
        self.why_diverged: str | None = None

    def restore(self, state_folder: Path) -> None:
        """Go on from the newest saved state, if there is one."""
        state = latest_state(state_folder)
        if state is not None:
            self.progress = Progress(**load_state(state, self.model, self.optimizer))
            if self.progress.settling is not None:
                self.settling = Settling(**self.progress.settling)
            if self.progress.loss_scale is not None:
                self.loss_scale = LossScale(**self.progress.loss_scale)
        starts = self.world.gather(self.progress.steps_done)
        if starts is not None and len(set(starts)) > 1:
            raise UserError(f"workers would resume at different steps {starts}: --out must be on a shared file system")

    def run(self, writer: RunWriter | None, reporter: Reporter, save_every: float) -> bool:
        """Train to the end; returns whether all stayed finite.

        Args:
            writer: Where the first worker logs; None on the others.
            reporter: What the person sees.
            save_every: Seconds between saved states.
        """
        self.model.train()
        saved_at = time.monotonic()
        for step in range(self.progress.steps_done, self.steps):
            line = self._train_step(step)
            finite = self._stayed_finite(line)
            if finite and self._ends_epoch(step):
                self._evaluate(line)
            if writer is not None:
                writer.log(line)
                reporter.step(line)
            if not finite:
                return False
            if writer is not None and time.monotonic() - saved_at >= save_every and step + 1 < self.steps:
                self._save(writer)
                saved_at = time.monotonic()
        if self.data.heldout is not None:
            self._measure({"heldout": self.data.heldout}, self.progress.metrics)
        for name, metrics in self.progress.metrics.items():
            if not all(map(math.isfinite, metrics.values())):
                self.why_diverged = f"the metrics on {name} are not finite after step {self.steps}"
        return self.why_diverged is None

    def _stayed_finite(self, line: dict[str, Any]) -> bool:
        """Whether the run can go on after a step: its loss and gradient are finite, or fp16 lowers its scale."""
        if math.isfinite(line["gradient_norm"]):
            if math.isfinite(line["loss"]):
                return True
        elif self.loss_scale is not None and not self.loss_scale.exhausted:
            self.progress.skipped_steps += 1
            return True
        what = self.gradient.describe_broken(line["gradient_norm"])
        lowest = "" if self.loss_scale is None else f" with a loss scale of {line['loss_scale']:g}"
        self.why_diverged = f"{what}{lowest} at step {line['step']}"
        return False

    def accumulate(self, step: int) -> np.ndarray:
        """Leave the step's mean gradient over all workers in the parameters; returns the rows of the global batch."""
        with self.clock.phase("data"):
            epoch, settled = step / self.plan.steps_per_epoch, self.settling is not None and self.settling.settled
            context = StepContext(self.spec.seed, step, epoch, self.world.rank, self.clock, settled)
            global_batch = self.plan.global_batch(step)
            memory = self.step_function.memory_factor(self.encoder, context)
            micro_batches = self.plan.deal(global_batch, self.world.rank, memory)
        with self.clock.phase("optimizer"):
            self.gradient.clear()
        for index, rows in enumerate(micro_batches):
            with self.clock.phase("data"):
                batch = self._micro_batch(rows, len(global_batch))
            context = replace(context, part=index * self.world.size + self.world.rank)
            self.gradient.count(self.step_function(self.encoder, batch, context))
            self.gradient.mark(self.word_table)  # whose lookup adds to its gradient past autograd
        with self.clock.phase("all-reduce"):
            self.gradient.sum_over(self.world)
        return global_batch

    def update(self, step: int) -> tuple[float, float]:
        """Clip and apply the gradient, if it is finite; returns its norm and the learning rate."""
        if self.loss_scale is not None:
            self.gradient.divide(self.loss_scale.value)
        norm = self.gradient.clip(self.spec.optim.clip_norm or 0.0)
        rate = self.rate * rate_factor(step, self.steps, self.spec.optim.warmup)
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with self.gradient.only_reached():
                self.optimizer.step()
        if self.loss_scale is not None:
            self.loss_scale.observe(norm)
        return norm, rate

    def _train_step(self, step: int) -> dict[str, Any]:
        """One global step, as a line for metrics.jsonl."""
        started = time.perf_counter()
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.value}
        rows = self.accumulate(step)
        with self.clock.phase("optimizer"):
            norm, rate = self.update(step)
        sums, size = self.gradient.statistics(), len(rows)
        seconds = time.perf_counter() - started
        self._count(step, rows, sums, seconds)
        return {
            "step": step + 1,
            "epoch": round((step + 1) / self.plan.steps_per_epoch, 6),
            "loss": sums["loss"] / size,
            "accuracy": None if self.data.task.regression else sums["correct"] / size,
            "divergence": sums["divergence"] / sums["noised"] if sums["noised"] else None,
            "lr": rate,
            "gradient_norm": norm,
            **scale,
            "samples_per_second": size / seconds,
        }

    def _micro_batch(self, rows: np.ndarray, size: int) -> MicroBatch:
        device = self.world.device
        tensors = {
            name: tensor.to(device, non_blocking=True)
            for name, tensor in collate(self.data.train, rows, self.admission.padding).items()
        }
        labels = tensors.pop("labels")
        samples = torch.as_tensor(rows, device=device)
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        return MicroBatch(tensors, labels, samples, scale / size, self.data.task.regression)

    def _count(self, step: int, rows: np.ndarray, sums: dict[str, float], seconds: float) -> None:
        progress = self.progress
        progress.steps_done = step + 1
        progress.samples += len(rows)
        progress.tokens += int(self.plan.lengths[rows].sum())
        progress.noised += round(sums["noised"])
        progress.skipped += round(sums["skipped"])
        progress.train_seconds += seconds
        if progress.noise_start is None and sums["noised"] + sums["skipped"]:
            progress.noise_start = step / self.plan.steps_per_epoch
        if self.settling is not None and math.isfinite(sums["loss"]):
            self.settling.observe(sums["loss"] / len(rows))

    def _ends_epoch(self, step: int) -> bool:
        return (step + 1) % self.plan.steps_per_epoch == 0 or step + 1 == self.steps

    def _evaluate(self, line: dict[str, Any]) -> None:
        """Measure all evaluation splits, note the best epoch by the headline metric, put them on the step's line."""
        metrics: dict[str, dict[str, float]] = {}
        self._measure(self.data.evals, metrics)
        if not metrics:
            return
        line["eval"] = metrics
        self.progress.metrics = metrics
        headline = self.data.task.metrics[0]
        value, best = next(iter(metrics.values()))[headline], self.progress.best
        if best is None or value > best["metrics"][next(iter(metrics))][headline]:
            self.progress.best = {"epoch": line["epoch"], "metrics": dict(metrics)}

    def _measure(self, splits: Any, metrics: dict[str, dict[str, float]]) -> None:
        started = time.perf_counter()
        for name, split in splits.items():
            found = self._metrics(split)
            if found is not None:
                metrics[name] = found
        self.progress.evaluation_seconds += time.perf_counter() - started

    def _metrics(self, split: TokenSplit) -> dict[str, float] | None:
        micro_batch, padding = self.spec.batches.micro_batch, self.admission.padding
        return evaluate_split(self.encoder, split, self.data.task, micro_batch, padding, self.world)

    def _save(self, writer: RunWriter) -> None:
        writer.sync_log()
        settling = None if self.settling is None else vars(self.settling)
        scale = None if self.loss_scale is None else vars(self.loss_scale)
        position = {**vars(self.progress), "phases": self.phases(), "settling": settling, "loss_scale": scale}
        save_state(writer.folder / "state", self.progress.steps_done, self.model, self.optimizer, position)
        writer.update(steps_done=self.progress.steps_done)

    def phases(self) -> dict[str, float]:
        """Seconds by phase, earlier parts of the run included."""
        context = self.clock.totals()
        before = self.progress.phases
        return {name: before.get(name, 0.0) + context.get(name, 0.0) for name in {**before, **context}}


def peak_rate(spec: RunSpec, width: int) -> float:
    """The learning rate that the spec means: given, given at B=32 and scaled, or the default for the encoder."""
    if spec.optim.lr is None:
        return default_rate(spec.optim.optimizer or "", width, spec.batches.batch_size)
    return scaled_rate(spec.optim.lr, spec.batches.batch_size, spec.optim.lr_scaling)
