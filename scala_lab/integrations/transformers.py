"""A drop-in for `transformers.Trainer`: every method of scala_lab in a script that exists already.

    from scala_lab.integrations.transformers import ScalaConfig, ScalaTrainer

    trainer = ScalaTrainer(model=model, args=args, train_dataset=rows, config=ScalaConfig(method="scala", delay=2))

It trains with the step functions of `scala-lab train`, and its gradient is the exact mean over the rows of an optimizer
step, whatever `per_device_train_batch_size`, `gradient_accumulation_steps` and the number of processes: a last window
that is shorter counts by its true size, and the rows that a distributed sampler repeats to fill it up count once. Stock
Trainer does not promise that: BERT's and other classifiers accept `num_items_in_batch` and ignore it, so that
accumulation over N batches gives N times the mean. Everything else is Trainer's own: arguments, data, evaluation,
schedule, callbacks, logging, checkpoints.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from scala_lab.clock import Clock
from scala_lab.config import OptimSpec, RecipeSpec, RunSpec
from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.methods.base import MicroBatch, Settling, StepContext, build_step
from scala_lab.models.encoder import Encoder
from scala_lab.optim.build import build_optimizer
from scala_lab.training.distributed import World
from scala_lab.training.trainer import Accumulation, GradientBuffer

ROW = "scala_lab_row"
"""Entry of a batch with each sample's place in the training set: its noise is a function of it."""

STATE_FILE = "scala_lab.json"
"""In a checkpoint, what the method needs beside the weights to go on."""


@dataclass(frozen=True)
class ScalaConfig(RecipeSpec):
    """A method with its options, as the flags of `scala-lab train`; what is not set comes from the method's recipe.

    Learning rate, weight decay, clipping (`max_grad_norm`, 0 for LAMB as published) and seed are Trainer's arguments.
    """

    optimizer: Literal["adamw", "lamb", "ngd"] | None = None
    """Override the optimizer of the method's recipe; adamw is the one that Trainer's arguments name."""
    max_weight_norm: float = 10.0
    """lamb, ngd: U of nu(c) = max(L, min(c, U)), the weight norm that they scale by; inf for no clip."""
    min_weight_norm: float = 0.0
    """lamb, ngd: L of nu(c)."""
    groups: Literal["tensor", "layer"] | None = None
    """lamb, ngd: what shares one adaptive rate, a transformer layer (default) or a tensor."""
    adapt_all: bool = False
    """lamb: adapt the rate of biases and LayerNorm too."""

    def spec(self, args: TrainingArguments) -> RunSpec:
        """Return the method and the optimizer with all defaults filled in."""
        rates = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
        moments = {"beta1": args.adam_beta1, "beta2": args.adam_beta2}
        given = {name: value for name, value in vars(self).items() if value is not None}
        # epochs: that the noise starts before the end is checked when it is known how long an epoch is
        settings = {**rates, **moments, **given, "epochs": 1 << 30, "seed": args.seed, "task": "rows.csv"}
        return RunSpec.of(**settings).resolved()


class ScalaTrainer(Trainer):
    """`transformers.Trainer` whose training step is that of a method of scala_lab.

    Sequence classifiers and regressors with one output, on one device per process: with several processes (torchrun or
    accelerate) gradients are summed once per optimizer step. What cannot be combined is refused when it is built.
    """

    def __init__(self, *args: Any, config: ScalaConfig | None = None, **kwargs: Any) -> None:
        self.scala = config or ScalaConfig()
        super().__init__(*args, **kwargs)
        self.spec = self.scala.spec(self.args)
        self._refuse_what_does_not_fit()
        self._world = World(self.args.process_index, self.args.world_size, self.args.device)
        self._clock = Clock(self.args.device.type)
        self._accumulation: Accumulation | None = None  # of the model that is trained
        self._embedding_norm: float | None = None  # before any step
        self._settling: Settling | None = None
        self._window: list[Any] = []  # the batches of this process that make up an optimizer step
        self._window_rows = 0  # in it, over all processes
        self._calls = 0  # of `training_step` in this window
        self._sums: dict[str, float] = {}  # statistics since the last line of the log
        if self.spec.optim.optimizer != "adamw" and self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            self.optimizer_cls_and_kwargs = (_OptimizerOfRecipe, {"optim": self.spec.optim})  # type: ignore[assignment]
        for callback in self.callback_handler.callbacks:
            _introduce(callback, self)

    def _refuse_what_does_not_fit(self) -> None:
        """Refuse what would change the gradient or be ignored without saying so."""
        args, model, method = self.args, self.accelerator.unwrap_model(self.model), self.spec.recipe.method
        config = getattr(model, "config", None)
        overridden = [
            name
            for name in ("compute_loss", "training_step")
            if getattr(type(self), name) is not getattr(ScalaTrainer, name)
        ]
        problems = {
            "DeepSpeed steps inside its backward, where a method has several": self.is_deepspeed_enabled,
            "FSDP shards the weights that noise and ascents need whole": self.is_fsdp_enabled,
            "tensor parallelism splits the weights that noise and ascents need whole": self.get_tp_size() > 1,
            "DataParallel splits batches in one process: start one process per GPU, with torchrun": args.n_gpu > 1,
            "torch.compile would be ignored: a method runs parts of the model": args.torch_compile,
            "NEFTune's noise on the embeddings would add to the method's, or take its place": args.neftune_noise_alpha
            is not None,
            "a loss of your own cannot be taken apart by sample": self.compute_loss_func is not None,
            f"your class overrides {' and '.join(overridden)}, which the method replaces": bool(overridden),
            "checkpointing with use_reentrant=True hides the gradient of the noise": args.gradient_checkpointing
            and "use_reentrant': True" in str(args.gradient_checkpointing_kwargs),
            "labels of several classes at once have no single prediction": getattr(config, "problem_type", None)
            == "multi_label_classification",
        }
        for problem, found in problems.items():
            if found:
                raise UserError(f"ScalaTrainer, method {method!r}: {problem}")

    def get_train_dataloader(self) -> Any:
        """Return Trainer's own, whose batches also say which rows of the training set they hold."""
        dataset, collator = self.train_dataset, self.data_collator
        if dataset is None or isinstance(dataset, IterableDataset) or not isinstance(dataset[0], Mapping):
            return super().get_train_dataloader()
        if hasattr(dataset, "column_names"):  # of the library datasets
            rows = self._remove_unused_columns(dataset, description="training")  # type: ignore[arg-type]
            inner: Callable[[Any], Any] = collator
        else:
            rows, inner = dataset, self._get_collator_with_removed_columns(collator, description="training")
        remove = self.args.remove_unused_columns
        try:
            self.train_dataset, self.data_collator = _Numbered(rows), _NumberedCollator(inner)
            self.args.remove_unused_columns = False  # has happened, and would remove the numbers too
            return super().get_train_dataloader()
        finally:
            self.train_dataset, self.data_collator, self.args.remove_unused_columns = dataset, collator, remove

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._accumulation = self._embedding_norm = self._settling = None
        return super()._inner_training_loop(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Collect the batches of an optimizer step, and count its rows over all processes."""
        window = list(itertools.islice(epoch_iterator, num_batches))
        if window:
            window[-1] = self._without_repeats(window[-1])
        own = 0
        for batch in window:
            size = _rows(batch)
            if ROW not in batch:  # of a stream: samples are told apart by their place in the step
                batch[ROW] = self._world.rank + self._world.size * torch.arange(own, own + size)
            own += size
        count = torch.tensor(float(own), device=self.args.device)
        self._world.all_reduce(count)
        self._window, self._window_rows, self._calls = [dict(batch) for batch in window], int(count), 0
        return window, None

    def _without_repeats(self, batch: Any) -> Any:
        """Return the last batch of a window without rows that a distributed sampler repeated to fill it up."""
        state, size = self.accelerator.gradient_state, _rows(batch)
        if self._world.size == 1 or not state.end_of_dataloader or self.args.dataloader_drop_last:
            return batch
        sampler: Any = self.callback_handler.train_dataloader  # of accelerate, around the one that draws rows
        for name in ("batch_sampler", "batch_sampler", "sampler"):
            sampler = getattr(sampler, name, None)
        at_once = size * self._world.size
        left = len(sampler) % at_once if has_length(sampler) else max(state.remainder, 0)
        return _slice(batch, 0, min(max((left or at_once) - self._world.rank * size, 0), size))

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Compute the gradient of the whole window at its last batch; return the window's mean loss there, else 0."""
        self._calls += 1
        if self._calls < len(self._window):
            return torch.zeros((), device=self.args.device)
        if self._accumulation is None:
            self._accumulation = self._prepare_method()
        gradient, encoder = self._accumulation.gradient, self._accumulation.encoder
        encoder.model.train()
        if callable(getattr(self.optimizer, "train", None)):  # schedule-free optimizers
            self.optimizer.train()  # type: ignore[union-attr]
        step = self.state.global_step
        epoch, settled = step / self._steps_per_epoch, self._settling is not None and self._settling.settled
        context = StepContext(self.args.seed, step, epoch, self._world.rank, self._clock, settled)
        groups = _in_groups([batch for batch in self._window if _rows(batch)], self._ascent_samples)
        gradient.attach()
        with _own_forward(encoder.model):
            self._accumulation.run(groups, self._micro_batch, context, shared=self._ascent_samples is None)
        gradient.hide_unreached()
        for name, value in gradient.statistics().items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        loss = gradient.statistics()["loss"] / self._window_rows
        if self._settling is not None and math.isfinite(loss):
            self._settling.observe(loss)
        self._window = []
        return torch.tensor(loss, device=self.args.device)

    def _prepare_method(self) -> Accumulation:
        """Build the method for the model, before the first step of a training."""
        loader, recipe = self.callback_handler.train_dataloader, self.spec.recipe
        batches = len(loader) if has_length(loader) else self.state.max_steps * self.args.gradient_accumulation_steps
        self._steps_per_epoch = math.ceil(batches / self.args.gradient_accumulation_steps)
        last = (self.state.max_steps - 1) / self._steps_per_epoch
        if recipe.delay_rule == "settled":
            self._settling = self._settling or Settling.over(self._steps_per_epoch)
        elif recipe.delay is not None and recipe.lambda_ != 0 and last < recipe.delay:
            raise UserError(
                f"method {recipe.method!r} starts its noise after delay={recipe.delay:g} epochs, and the last step "
                f"begins after {last:.3g}: give a smaller delay or more epochs"
            )
        model: nn.Module = self.accelerator.unwrap_model(self.model)
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        if self._embedding_norm is None:
            self._embedding_norm = float(table.detach().float().norm(dim=1).median())
        step_function = build_step(recipe.method, recipe.options, self._embedding_norm, table.shape[1])
        if self._ascent_samples is not None and self._world.size > 1:
            raise UserError("sam_m needs one process: with several, each has rows of its own; leave it out")
        with _own_forward(model):
            encoder = Encoder(model, autocast=_AUTOCAST.get(self.accelerator.mixed_precision))
        return Accumulation(step_function, encoder, GradientBuffer(model.parameters(), self._world.size), self._world)

    @property
    def _ascent_samples(self) -> int | None:
        return self.spec.recipe.sam_m

    def _micro_batch(self, batch: Mapping[str, Any]) -> MicroBatch:
        inputs, name = dict(self._prepare_inputs(dict(batch))), self.label_names[0]  # type: ignore[arg-type]
        rows, labels = inputs.pop(ROW), inputs.pop(name, None)
        if labels is None or "input_ids" not in inputs:
            raise UserError(f"ScalaTrainer needs batches with input_ids and {name}, not {sorted(batch)}")
        if "attention_mask" not in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        regression = bool(self.model.config.num_labels == 1)  # type: ignore[union-attr]
        smoothing = 0.0 if regression else self.args.label_smoothing_factor
        scale = 1.0
        if (scaler := getattr(self.accelerator, "scaler", None)) is not None:
            scaler.scale(torch.ones((), device=self.args.device))  # which sets it up
            scale = scaler.get_scale()
        return MicroBatch(inputs, labels.view(-1), rows, scale / self._window_rows, regression, smoothing)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log what Trainer logs, with the mean divergence r and the noise terms that were left out."""
        if "loss" in logs and self._sums:
            noised, skipped = self._sums.get("noised", 0.0), self._sums.get("skipped", 0.0)
            if noised:
                logs["divergence"] = self._sums["divergence"] / noised
            if skipped:
                logs["skipped_noise"] = skipped
            self._sums = {}
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            settling = None if self._settling is None else vars(self._settling)
            write_json(Path(output_dir) / STATE_FILE, {"embedding_norm": self._embedding_norm, "settling": settling})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / STATE_FILE).is_file():
            state = json.loads((Path(checkpoint) / STATE_FILE).read_text(encoding="utf-8"))
            self._embedding_norm = state["embedding_norm"]
            self._settling = Settling(**state["settling"]) if state["settling"] else None

    def add_callback(self, callback: Any) -> None:
        """Add a callback; a `SharpnessCallback` logs through this trainer."""
        super().add_callback(callback)
        for known in self.callback_handler.callbacks:
            _introduce(known, self)


class SharpnessCallback(TrainerCallback):
    """Logs the top eigenvalue of the Hessian of the training loss on a fixed set of rows, during training.

        trainer.add_callback(SharpnessCallback(trainer, every_steps=50))

    Without `every_steps` it measures at the end of every epoch. A measurement starts from the last eigenvector, so that
    it takes a few Hessian-vector products. It changes nothing: weights, optimizer and random numbers are those of a
    training without it. The log has `sharpness`, its `sharpness_residual` ||Hv - lambda v|| / lambda, at most `tol`
    unless `max_products` ended it, and `sharpness_products`. A `ScalaTrainer` introduces itself: `callbacks=[...]`.
    """

    def __init__(
        self,
        trainer: Trainer | None = None,
        *,
        every_steps: int | None = None,
        samples: int = 256,
        batch_size: int = 32,
        tol: float = 1e-2,
        max_products: int = 50,
        seed: int = 0,
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise UserError(f"every_steps must be at least 1, not {every_steps}")
        self.trainer, self.every_steps = trainer, every_steps
        self.samples, self.batch_size, self.tol = samples, batch_size, tol
        self.max_products, self.seed = max_products, seed
        self._vector: Tensor | None = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure after every so many steps."""
        if self.every_steps is not None and state.global_step % self.every_steps == 0:
            self._log(args, state, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure after every epoch."""
        if self.every_steps is None:
            self._log(args, state, **kwargs)

    def _log(
        self, args: TrainingArguments, state: TrainerState, model: nn.Module, train_dataloader: Any, **_: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        line = self.measure(model, train_dataloader, args.device)
        if self.trainer is not None:
            self.trainer.log(line)
        else:
            state.log_history.append({**line, "step": state.global_step})

    def measure(self, model: nn.Module, loader: Any, device: torch.device) -> dict[str, float]:
        """Measure a model on rows of a loader's training set."""
        from scala_lab.curvature import HessianOperator, top_eigenpairs

        with _unchanged_randomness(device), _own_forward(model):
            rows = np.random.default_rng(self.seed).permutation(len(loader.dataset))[: self.samples].tolist()
            chunks = (rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size))
            batches = [dict(loader.collate_fn([loader.dataset[row] for row in chunk])) for chunk in chunks]
            for batch in batches:
                batch.pop(ROW, None)
            op = HessianOperator(model, batches)
            guess = self._vector if self._vector is not None and len(self._vector) == op.space.touched_size else None
            top = top_eigenpairs(op, 1, self.tol, max_products=self.max_products, seed=self.seed, start=guess)
        self._vector = top.touched_eigenvectors[0]
        value, residual = float(top.eigenvalues[0]), float(top.residuals[0])
        return {"sharpness": value, "sharpness_residual": residual, "sharpness_products": top.hvps}


class _OptimizerOfRecipe:
    """What Trainer's `optimizer_cls_and_kwargs` calls a factory: it gets the model, whose layers LAMB needs."""

    def __call__(self, model: nn.Module, optim: OptimSpec) -> torch.optim.Optimizer:
        assert optim.lr is not None
        return build_optimizer(model, optim, optim.lr)


class _Numbered(Dataset):
    """Rows that know their number."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        if hasattr(rows, "set_epoch"):
            self.set_epoch = rows.set_epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**self.rows[row], ROW: row}

    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        many = getattr(self.rows, "__getitems__", None)
        items = many(rows) if many is not None else [self.rows[row] for row in rows]
        return [{**item, ROW: row} for row, item in zip(rows, items, strict=True)]


@dataclass(frozen=True)
class _NumberedCollator:
    """Collates rows as the user's collator does, and adds their numbers."""

    inner: Callable[[Any], Any]

    def __call__(self, features: Sequence[dict[str, Any]]) -> Any:
        rows = [feature[ROW] for feature in features]
        batch = self.inner([{name: value for name, value in feature.items() if name != ROW} for feature in features])
        batch[ROW] = torch.tensor(rows)
        return batch


def _rows(batch: Mapping[str, Any]) -> int:
    return len(next(value for value in batch.values() if isinstance(value, Tensor)))


def _slice(batch: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: value[start:stop] if isinstance(value, Tensor) else value for name, value in batch.items()}


def _in_groups(batches: list[Any], size: int | None) -> list[list[Any]]:
    """Return batches in groups of `size` rows, by default all in one; a batch is cut where a group ends."""
    if size is None:
        return [batches]
    groups: list[list[Any]] = []
    room = 0
    for batch in batches:
        start = 0
        while start < _rows(batch):
            if room == 0:
                groups.append([])
                room = size
            part = _slice(batch, start, start + room)
            groups[-1].append(part)
            room -= _rows(part)
            start += _rows(part)
    return groups


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """Inside the block, call the model without the autocast that accelerate puts around it."""
    wrapped = model.__dict__.pop("forward", None) if "_original_forward" in model.__dict__ else None
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


@contextmanager
def _unchanged_randomness(device: torch.device) -> Iterator[None]:
    """Leave all random number generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _introduce(callback: Any, trainer: Trainer) -> None:
    if isinstance(callback, SharpnessCallback) and callback.trainer is None:
        callback.trainer = trainer


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
