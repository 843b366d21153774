"""The training step of every method, from the batch to the saved state.

`Training.run` is the loop. A step cuts the global batch into micro-batches, runs the method's step function on each,
sums gradients and statistics over all workers in one all-reduce of one flat buffer, clips and updates. Where the method
takes its gradient at perturbed weights (SAM), it runs twice on each group of samples: see `Accumulation`.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from scala_lab.batches import BatchPlan, part_cost
from scala_lab.clock import Clock
from scala_lab.config import RunSpec, planned_steps
from scala_lab.data.tasks import compute_metrics, mean_loss, row_predictions
from scala_lab.data.tokens import Padding, TokenSplit, collate, cut_by_length
from scala_lab.errors import UserError
from scala_lab.methods.base import STATISTICS, MicroBatch, Settling, Step, StepContext, build_step
from scala_lab.methods.recipes import chosen_pga
from scala_lab.models.encoder import Encoder, eval_mode
from scala_lab.models.loading import hidden_size, to_float64
from scala_lab.optim.build import build_optimizer, default_rate, rate_factor, scaled_rate
from scala_lab.training.distributed import World, name_workers
from scala_lab.training.precision import AUTOCAST, LossScale
from scala_lab.training.preparation import Prepared, load_model
from scala_lab.training.progress import RunBar
from scala_lab.training.run_dir import RunWriter, load_state, save_state

T = TypeVar("T")

FIT_ROWS = 2048
"""Maximum number of training rows on which the final loss, without dropout and noise, shows how well the model fits."""


@dataclass
class Progress:
    """What has happened so far; saved with the state, so that a resumed run goes on counting."""

    steps_done: int = 0
    samples: int = 0
    tokens: int = 0
    noised: int = 0
    skipped: int = 0
    noise_start: float | None = None
    skipped_steps: int = 0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    trunk: dict[str, Any] | None = None  # id and step of the run that this one branched off


class Training:
    """One worker's part of a run."""

    def __init__(self, spec: RunSpec, prepared: Prepared, world: World) -> None:
        self.spec, self.data, self.world = spec, prepared, world
        self.model, self.admission = load_model(spec, prepared)
        self.model.to(world.device)  # type: ignore[arg-type]
        if spec.machine.precision == "float64":
            to_float64(self.model)
        world.broadcast([tensor.data for tensor in self.model.parameters()])
        self.encoder = self.admission.encoder(self.model, AUTOCAST.get(spec.machine.precision))
        self.word_table: Tensor = self.model.get_input_embeddings().weight  # type: ignore[assignment]
        self.embedding_norm = float(self.word_table.detach().norm(dim=1).median())  # before any state is restored
        options, embedding_width = spec.recipe.options, self.word_table.shape[1]
        self.step_function = build_step(spec.recipe.method, options, self.embedding_norm, embedding_width)
        self.pga = chosen_pga(spec.recipe.options, prepared.task.outputs, self.encoder.drops_out)
        width, optim, batch_size = hidden_size(self.model), spec.optim, spec.batches.batch_size
        if optim.lr is None:
            self.rate = default_rate(optim.optimizer or "", width, batch_size)
        else:
            self.rate = scaled_rate(optim.lr, batch_size, optim.lr_scaling)
        self.gradient = GradientBuffer(self.model.parameters(), world.size)
        self.optimizer = build_optimizer(self.model, optim, self.rate)
        self.loss_scale = LossScale() if spec.machine.precision == "fp16" else None
        sizes, equal_lengths = (batch_size, spec.batches.micro_batch, world.size), self.admission.padding.side == "none"
        self.plan = BatchPlan(prepared.train.lengths, *sizes, spec.seed, part_cost(width), equal_lengths)
        self.steps = planned_steps(spec, len(prepared.train))
        self.settling = Settling.over(self.plan.steps_per_epoch) if spec.recipe.delay_rule == "settled" else None
        self.clock = Clock(world.device.type)
        self.progress = Progress()
        self.losses: dict[str, float] = {}  # by split, at the end
        self.predictions: dict[str, dict[str, np.ndarray]] = {}  # of every row, by split, at the end
        self.why_diverged: str | None = None

    def run(self, writer: RunWriter | None, bar: RunBar, save_every: float, keep: Collection[int] = ()) -> bool:
        """Train to the end and return whether everything stayed finite; the first worker has a writer and saves.

        States after the steps in `keep` stay in the folder `trunk`.
        """
        self.model.train()
        saved_at = time.monotonic()
        for step in range(self.progress.steps_done, self.steps):
            line = self._train_step(step)
            finite = self._stayed_finite(line)
            last = step + 1 == self.steps
            every_epoch = self.spec.data.evaluate == "epochs" and (step + 1) % self.plan.steps_per_epoch == 0
            if finite and (last or every_epoch):
                self._evaluate_epoch(line)
            if writer is not None:
                writer.log(line)
                bar.step(line)
                if finite and step + 1 in keep:
                    self._save(writer, keep=True)
                if finite and not last and time.monotonic() - saved_at >= save_every:
                    self._save(writer)
                    saved_at = time.monotonic()
            if not finite:
                return False
        self.progress.metrics |= self._evaluate(self.data.kept_apart)
        self._evaluate({"train": self.data.train.take(np.arange(min(len(self.data.train), FIT_ROWS)))})
        for name, metrics in self.progress.metrics.items():
            if not all(map(math.isfinite, metrics.values())):
                self.why_diverged = f"the metrics on {name} are not finite after step {self.steps}"
        return self.why_diverged is None

    def _train_step(self, step: int) -> dict[str, Any]:
        """Do one global step; return its line for metrics.jsonl."""
        started = time.perf_counter()
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.value}
        rows = self.accumulate(step)
        with self.clock.phase("optimizer"):
            norm, rate = self.update(step)
        sums, size, seconds = self.gradient.statistics(), len(rows), time.perf_counter() - started
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

    def accumulate(self, step: int) -> np.ndarray:
        """Set the parameters' `.grad` to the mean over the global batch; return the rows of the batch."""
        with self.clock.phase("data"):
            epoch, settled = step / self.plan.steps_per_epoch, self.settling is not None and self.settling.settled
            context = StepContext(self.spec.seed, step, epoch, self.world.rank, self.clock, settled)
            groups = self.plan.groups(step, self.step_function.ascent_samples)
            memory = self.step_function.memory_factor(self.encoder, context)
            dealt, global_batch = self.plan.deal_groups(groups, self.world.rank, memory), np.concatenate(groups)
        load = partial(self._micro_batch, batch_size=len(global_batch))
        accumulation = Accumulation(self.step_function, self.encoder, self.gradient, self.world)
        accumulation.run(dealt, load, context, shared=len(groups) == 1)
        return global_batch

    def _micro_batch(self, rows: np.ndarray, batch_size: int) -> MicroBatch:
        inputs = collate(self.data.train, rows, self.admission.padding, self.world.device)
        labels, samples = inputs.pop("labels"), torch.as_tensor(rows, device=self.world.device)
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        return MicroBatch(inputs, labels, samples, scale / batch_size, self.data.task.regression)

    def update(self, step: int) -> tuple[float, float]:
        """Clip the gradient and update the weights, if it is finite; return its norm and the learning rate."""
        if self.loss_scale is not None:
            self.gradient.gradients.div_(self.loss_scale.value)
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

    def _stayed_finite(self, line: dict[str, Any]) -> bool:
        """Return whether loss and gradient are finite, or fp16 can lower its loss scale; else note why not."""
        if math.isfinite(line["gradient_norm"]):
            if math.isfinite(line["loss"]):
                return True
        elif self.loss_scale is not None and not self.loss_scale.exhausted:
            self.progress.skipped_steps += 1
            return True
        scale = "" if self.loss_scale is None else f" with a loss scale of {line['loss_scale']:g}"
        self.why_diverged = f"{self.gradient.describe_broken(line['gradient_norm'])}{scale} at step {line['step']}"
        return False

    def _evaluate_epoch(self, line: dict[str, Any]) -> None:
        """Evaluate all evaluation splits, add the metrics to the step's line, and note the best epoch."""
        metrics = self._evaluate(self.data.evals)
        if not metrics:
            return
        line["eval"] = self.progress.metrics = metrics
        split, headline, best = next(iter(metrics)), self.data.task.metrics[0], self.progress.best
        if best is None or metrics[split][headline] > best["metrics"][split][headline]:
            self.progress.best = {"epoch": line["epoch"], "metrics": dict(metrics)}

    def _evaluate(self, splits: Mapping[str, TokenSplit]) -> dict[str, dict[str, float]]:
        """Compute the metrics of splits by all workers together; only the first worker gets them."""
        started, metrics = time.perf_counter(), {}
        for name, split in splits.items():
            micro_batch, padding = self.spec.batches.micro_batch, self.admission.padding
            logits = predict_split(self.encoder, split, micro_batch, padding, self.world)
            if logits is not None:
                metrics[name] = compute_metrics(self.data.task, logits, split.labels)
                self.predictions[name] = row_predictions(self.data.task, logits, split.labels)
                self.losses[name] = mean_loss(self.data.task, logits, split.labels)
        self.progress.evaluation_seconds += time.perf_counter() - started
        return metrics

    def _save(self, writer: RunWriter, keep: bool = False) -> None:
        writer.sync_log()  # on disk before the state says that its steps are done
        rules = {
            name: rule and vars(rule) for name, rule in (("settling", self.settling), ("loss_scale", self.loss_scale))
        }
        position = {**vars(self.progress), "phases": self.clock.totals(), **rules}
        steps = self.progress.steps_done
        if keep:
            position["trunk"] = {"id": self.spec.run_id, "step": steps}  # for the runs that branch off here
        folder = writer.folder / ("trunk" if keep else "state")
        save_state(folder, steps, self.model, self.optimizer, position, keep_others=keep)
        writer.update(steps_done=steps)

    def restore(self, state: Path | None) -> None:
        """Go on from a saved state, if there is one; all workers must have the same."""
        if state is not None:
            position = load_state(state, self.model, self.optimizer)
            self.clock = Clock(self.world.device.type, position.pop("phases"))
            settling, loss_scale = position.pop("settling"), position.pop("loss_scale")
            self.settling = Settling(**settling) if settling else self.settling
            self.loss_scale = LossScale(**loss_scale) if loss_scale else self.loss_scale
            self.progress = Progress(**position)
        starts = self.world.gather(self.progress.steps_done)
        if starts is not None and len(set(starts)) > 1:
            raise UserError(f"workers would resume at different steps {starts}: --out must be on a shared file system")


def predict_split(
    encoder: Encoder, split: TokenSplit, micro_batch: int, padding: Padding, world: World
) -> np.ndarray | None:
    """Compute the logits of all rows, in their order, on the first worker; None on the others.

    Which rows share a batch, and with it every bit of the result, does not depend on the number of workers.
    """
    batches = cut_by_length(split, np.arange(len(split)), 2 * micro_batch, padding)[world.rank :: world.size]
    with eval_mode(encoder.model), torch.inference_mode():
        outputs = [_predict(encoder, split, rows, padding, world) for rows in batches]
    gathered = world.gather((batches, outputs))
    if gathered is None:
        return None
    rows, logits = (np.concatenate([array for part in gathered for array in part[kind]]) for kind in range(2))
    return logits[np.argsort(rows)]


def _predict(encoder: Encoder, split: TokenSplit, rows: np.ndarray, padding: Padding, world: World) -> np.ndarray:
    inputs = collate(split, rows, padding, world.device)
    del inputs["labels"]
    return encoder.predict(inputs).cpu().numpy()


class GradientBuffer:
    """A flat tensor whose slices are the parameters' `.grad`, so that one all-reduce and one norm serve all of them.

    Its tail is reduced in the same message:

    - the sums of `STATISTICS`;
    - for each parameter, how many workers' backward passes reached it. A parameter that none reached has no gradient,
      which is not a gradient of 0: optimizers neither decay it nor update its moments;
    - for each worker, whether its own loss (1) or gradient (2) was not finite.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], workers: int = 1) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self.parameters:
            raise UserError("the model has no trainable parameter: all of them are frozen")
        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in self.parameters})
        if len(dtypes) > 1:
            raise UserError(f"the model's parameters are in {' and '.join(dtypes)}: training needs all of them in one")
        sizes = [parameter.numel() for parameter in self.parameters]
        tail = (len(STATISTICS), len(sizes), workers)
        self.flat = self.parameters[0].new_zeros(sum(sizes) + sum(tail))
        self.gradients, self._tail = self.flat.split([sum(sizes), sum(tail)])
        self._statistics, self._reached, self._broken = self._tail.split(tail)
        pairs = zip(self.gradients.split(sizes), self.parameters, strict=True)
        self._slices = [part.view_as(parameter) for part, parameter in pairs]
        self._indices: dict[Tensor, int] = {parameter: index for index, parameter in enumerate(self.parameters)}
        self._marks = [False] * len(sizes)
        for index, parameter in enumerate(self.parameters):
            parameter.register_hook(partial(_mark_if_any, self._marks, index))
        self.attach()

    def attach(self) -> None:
        """Make the slices the parameters' `.grad`, where something else has replaced them."""
        for parameter, gradient in zip(self.parameters, self._slices, strict=True):
            parameter.grad = gradient

    def mark(self, parameter: Tensor) -> None:
        """Note that a parameter has a gradient in this step, if it was added outside of autograd."""
        index = self._indices.get(parameter)
        if index is not None:
            self._marks[index] = True

    def clear(self) -> None:
        """Start a new step."""
        self.flat.zero_()
        self._marks[:] = [False] * len(self._marks)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Start the gradient from 0 inside the block, and go on after it from where it was; statistics stay."""
        gradients, marks = self.gradients.clone(), self._marks[:]
        self.gradients.zero_()
        yield
        self.gradients.copy_(gradients)
        self._marks[:] = marks

    def add_statistics(self, statistics: Tensor) -> None:
        """Add a micro-batch's statistics."""
        self._statistics += statistics.to(self._statistics)

    def all_reduce(self, world: World) -> None:
        """Replace everything by its sum over all workers."""
        self._reached.copy_(torch.tensor(self._marks))
        if world.size > 1:
            loss, norm = self._statistics[STATISTICS.index("loss")], self.gradients.norm()
            self._broken[world.rank] = ~loss.isfinite() + 2 * ~norm.isfinite()
        world.all_reduce(self.flat)
        self.__dict__.pop("_sums", None)

    @cached_property
    def _sums(self) -> list[float]:
        """The tail, copied from the device once per step."""
        return self._tail.tolist()

    def statistics(self) -> dict[str, float]:
        """The sums over all samples of the step, by name."""
        return dict(zip(STATISTICS, self._sums, strict=False))

    def clip(self, max_norm: float) -> float:
        """Clip the gradient as torch's `clip_grad_norm_` if `max_norm` is positive; return the norm before."""
        norm = float(self.gradients.norm())
        if 0 < max_norm < norm + 1e-6:
            self.gradients.mul_(max_norm / (norm + 1e-6))
        return norm

    def hide_unreached(self) -> None:
        """Set `.grad` to None where no backward pass of any worker reached the parameter."""
        reached = self._sums[len(STATISTICS) :][: len(self.parameters)]
        for parameter, count in zip(self.parameters, reached, strict=True):
            if not count:
                parameter.grad = None

    @contextmanager
    def only_reached(self) -> Iterator[None]:
        """For an optimizer's step in the block, hide the gradients that were not reached."""
        self.hide_unreached()
        try:
            yield
        finally:
            self.attach()

    def describe_broken(self, norm: float) -> str:
        """Say what is not finite, given the gradient's norm, and on which workers if any found it in its own part."""
        flags = [round(flag) for flag in self._sums[len(STATISTICS) + len(self.parameters) :]]
        by_worker = [
            f"{name_workers([rank for rank, flag in enumerate(flags) if flag == kind])}: {_NOT_FINITE[kind]}"
            for kind in sorted(set(flags) - {0})
        ]
        total = (not math.isfinite(self.statistics()["loss"])) + 2 * (not math.isfinite(norm))
        return "; ".join(by_worker) or _NOT_FINITE[total]


_NOT_FINITE = {
    1: "the loss is not finite",
    2: "the gradient is not finite",
    3: "the loss and the gradient are not finite",
}


def _mark_if_any(marks: list[bool], index: int, gradient: Tensor | None) -> None:
    """Mark a parameter in its autograd hook, unless a custom function gave it no gradient."""
    if gradient is not None:
        marks[index] = True


@dataclass(frozen=True)
class Accumulation:
    """Sets the parameters' `.grad` to the mean over a global batch, whatever the micro-batches and workers."""

    step_function: Step
    encoder: Encoder
    gradient: GradientBuffer
    world: World

    def run(
        self, groups: Sequence[Sequence[T]], load: Callable[[T], MicroBatch], context: StepContext, shared: bool
    ) -> None:
        """Add up this worker's part of a batch and sum over workers: one all-reduce, one more for a shared ascent.

        `groups` has the samples of this worker, cut into what `load` makes micro-batches of; samples of a group share
        an ascent. `shared` says that there is one group for all workers; else workers have whole groups. A group's i-th
        micro-batch is part i * workers + rank of all, from where dropout masks derive.
        """
        with context.clock.phase("optimizer"):
            self.gradient.clear()
        for parts in groups:
            run = partial(self._add_gradients, parts, load)
            with self._perturbed(run, context, shared) as perturbed:
                run(self.step_function, replace(context, perturbed=perturbed))
            context = replace(context, part=context.part + len(parts) * self.world.size)
        with context.clock.phase("all-reduce"):
            self.gradient.all_reduce(self.world)

    def _add_gradients(
        self, parts: Sequence[T], load: Callable[[T], MicroBatch], function: Step, context: StepContext
    ) -> None:
        """Run a step function on this worker's micro-batches of a group."""
        word_table: Tensor = self.encoder.model.get_input_embeddings().weight  # type: ignore[assignment, operator]
        for index, part in enumerate(parts):
            with context.clock.phase("data"):
                batch = load(part)
            context_of_part = replace(context, part=context.part + index * self.world.size)
            self.gradient.add_statistics(function(self.encoder, batch, context_of_part))
            self.gradient.mark(word_table)  # the lookup adds to its gradient outside of autograd

    @contextmanager
    def _perturbed(
        self, run: Callable[[Step, StepContext], None], context: StepContext, shared: bool
    ) -> Iterator[bool]:
        """Move the weights inside the block, if the step function wants it, by its ascent on a group's samples.

        The group's gradient is summed over workers if they share it. Weights come back to the bit.
        """
        ascent_pass = self.step_function.ascent_pass
        if ascent_pass is None:
            yield False
            return
        with self.gradient.set_aside():
            run(ascent_pass, context)
            if shared:
                with context.clock.phase("all-reduce"):
                    self.world.all_reduce(self.gradient.gradients)
            with context.clock.phase("inner backward"):
                weights: list[Tensor] = list(self.gradient.parameters)
                before = [weight.detach().clone() for weight in weights]
                moved = self.step_function.perturb(weights)
        yield moved
        with context.clock.phase("backward"), torch.no_grad():
            torch._foreach_copy_(weights, before)
