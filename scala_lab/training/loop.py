"""The one loop that every method runs through: gradient, all-reduce, update, evaluation, state."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scala_lab.batches import BatchPlan, part_cost
from scala_lab.clock import Clock
from scala_lab.errors import UserError
from scala_lab.methods.delay import Settling
from scala_lab.methods.pga import chosen_pga
from scala_lab.methods.step import MicroBatch, Moment, build_step
from scala_lab.models.loading import hidden_size, to_float64
from scala_lab.optim.build import build_optimizer, default_rate
from scala_lab.optim.schedule import rate_factor, scaled_rate
from scala_lab.precision import AUTOCAST, LossScale
from scala_lab.spec import RunSpec, planned_steps
from scala_lab.tasks.tokens import TokenSplit, collate
from scala_lab.training.checkpoint import latest_state, load_state, save_state
from scala_lab.training.evaluation import evaluate_split
from scala_lab.training.gradient import GradientBuffer
from scala_lab.training.preparation import Prepared, load_model
from scala_lab.training.progress import Reporter
from scala_lab.training.run_folder import RunWriter
from scala_lab.training.world import World


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
            now = Moment(self.spec.seed, step, epoch, self.world.rank, self.clock, settled)
            global_batch = self.plan.global_batch(step)
            memory = self.step_function.memory_factor(self.encoder, now)
            micro_batches = self.plan.deal(global_batch, self.world.rank, memory)
        with self.clock.phase("optimizer"):
            self.gradient.clear()
        for index, rows in enumerate(micro_batches):
            with self.clock.phase("data"):
                batch = self._micro_batch(rows, len(global_batch))
            now = replace(now, part=index * self.world.size + self.world.rank)
            self.gradient.count(self.step_function(self.encoder, batch, now))
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
            self.settling.hear(sums["loss"] / len(rows))

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
        now = self.clock.totals()
        before = self.progress.phases
        return {name: before.get(name, 0.0) + now.get(name, 0.0) for name in {**before, **now}}


def peak_rate(spec: RunSpec, width: int) -> float:
    """The learning rate that the spec means: given, given at B=32 and scaled, or the default for the encoder."""
    if spec.optim.lr is None:
        return default_rate(spec.optim.optimizer or "", width, spec.batches.batch_size)
    return scaled_rate(spec.optim.lr, spec.batches.batch_size, spec.optim.lr_scaling)
