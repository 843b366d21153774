"""Does a training's gradient depend on how its batch is cut? Measured with Trainer itself.

The gradient of an optimizer step should be the mean of the gradients of its rows, whatever the micro-batch, the
padding, the number of processes, or the number of batches in the last window of an epoch. Here a Trainer takes that
step, in float64 and without dropout, over each row alone and then over all rows cut in other ways. For a gradient g and
the mean g_0 of the single rows, the factor is <g, g_0> / <g_0, g_0>, and the difference ||g - g_0|| / ||g_0||.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from scala_lab.config import DataSpec, MachineSpec
from scala_lab.data.sources import load_task
from scala_lab.data.tasks import Task
from scala_lab.errors import UserError
from scala_lab.integrations.transformers import ScalaConfig, ScalaTrainer
from scala_lab.methods.recipes import find_recipe
from scala_lab.models.loading import load_classifier, load_tokenizer, locate_model, to_float64
from scala_lab.training.distributed import join_world, run_workers

ROWS, UNEVEN = 12, 11  # rows of a step, and of one that two processes cannot share evenly

NO_RATE = 1e-30

TOLERANCE = 1e-6
"""Largest relative difference, in float64, of a gradient that does not depend on the cut."""


@dataclass(frozen=True)
class Subject:
    """What is audited: a model, and the Trainer that trains it."""

    model: str
    file: Path | None = None  # with a subclass of Trainer; without it, stock Trainer
    method: str | None = None  # of a ScalaTrainer, in place of it

    @property
    def name(self) -> str:
        """What people call it."""
        if self.method is not None:
            return f"ScalaTrainer, method {self.method}"
        return "transformers.Trainer" if self.file is None else self.trainer().__name__

    def trainer(self) -> type[Trainer]:
        """Return the class."""
        if self.method is not None:
            return ScalaTrainer
        return Trainer if self.file is None else _trainer_class(self.file)


@dataclass(frozen=True)
class Cut:
    """One way to cut a step's rows: `rows_at_once` by `accumulation` batches on each process."""

    about: str  # what it would show the gradient to depend on
    text: str
    rows: Sequence[int]
    rows_at_once: int
    accumulation: int = 1
    processes: int = 1
    before: int = 0  # rows of the epoch's first window, where the audited step is the second


CUTS = (
    Cut("padding", f"{ROWS} rows in one padded batch", range(ROWS), ROWS),
    Cut("micro-batch", f"{ROWS} rows in 3 accumulated batches", range(ROWS), 4, 3),
    Cut("micro-batch", f"{ROWS} rows one by one", range(ROWS), 1, ROWS),
    Cut("uneven micro-batches", "7 rows in batches of 4 and 3", range(7), 4, 2),
    Cut("last window", "4 rows in 2 batches, after a window of 3", range(6, 10), 2, 3, before=6),
    Cut("last window", "1 row in 1 batch, after a window of 3", range(6, 7), 2, 3, before=6),
    Cut("processes", f"{ROWS} rows on 2 processes", range(ROWS), ROWS // 2, processes=2),
    Cut("processes", f"{UNEVEN} rows on 2 processes", range(UNEVEN), ROWS // 2, processes=2),
)


@dataclass(frozen=True)
class Finding:
    """How the gradient of a cut compares with the mean over single rows."""

    cut: Cut
    factor: float
    difference: float

    @property
    def depends(self) -> bool:
        """Whether the gradient depends on the cut."""
        return not self.difference <= TOLERANCE

    def record(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        found = {"about": self.cut.about, "cut": self.cut.text, "factor": self.factor, "difference": self.difference}
        return {**found, "depends": self.depends}


def audit(subject: Subject, processes: bool = True) -> Iterator[Finding]:
    """Take every cut's step and compare its gradient; without `processes` only in this process."""
    ascends = subject.method in ("sam", "asam")  # whose step is no mean over rows: the reference is the whole batch
    single = functools.cache(lambda row, step: gradients(subject, [row], 1, 1, step)[0])
    for cut in CUTS:
        if cut.processes > 1 and not processes:
            continue
        step, order = (1, [*range(cut.before), *cut.rows]) if cut.before else (0, list(cut.rows))
        if ascends:
            (expected,) = gradients(subject, list(cut.rows), len(cut.rows), 1, step)
        else:
            expected = torch.stack([single(row, step) for row in cut.rows]).mean(0)
        run = functools.partial(gradients, subject, order, cut.rows_at_once, cut.accumulation)
        if cut.processes > 1:
            machine = MachineSpec(workers=cut.processes, threads=1, device="cpu")
            found = run_workers(functools.partial(_in_process, run, machine), machine)[step]
        else:
            found = run()[step]
        length = float(expected.norm())
        if not length:
            raise UserError(f"{subject.name}: the gradient of its rows is 0, so that there is nothing to compare")
        yield Finding(cut, float(found @ expected) / length**2, float((found - expected).norm()) / length)


def _in_process(run: Callable[[], list[Tensor]], machine: MachineSpec) -> list[Tensor]:
    world = join_world(machine)
    try:
        return run()
    finally:
        world.leave()


def gradients(
    subject: Subject, order: Sequence[int], rows_at_once: int, accumulation: int, first_step: int = 0
) -> list[Tensor]:
    """Let the Trainer go through rows in this order; return the flat gradient of every optimizer step.

    The rate is too small to move a weight. Noise is a function of the number of a step, of which the first has
    `first_step`.
    """
    steps: list[Tensor] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            state.global_step = first_step

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trained = (parameter for parameter in kwargs["model"].parameters() if parameter.requires_grad)
            parts = (torch.zeros_like(p) if p.grad is None else p.grad for p in trained)
            steps.append(torch.cat([part.detach().flatten() for part in parts]))

    model, rows, collator = _inputs(subject.model)
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=1 + first_step,
            learning_rate=NO_RATE,
            max_grad_norm=0.0,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        options: dict[str, Any] = {"train_dataset": rows, "data_collator": collator, "callbacks": [Watch()]}
        if subject.method is not None:
            has_delay = "delay" in find_recipe(subject.method).option_values()
            options["config"] = ScalaConfig(method=subject.method, delay=0.0 if has_delay else None)
        trainer = subject.trainer()(model=copy.deepcopy(model), args=args, **options)
        trainer._get_train_sampler = lambda *_: order  # type: ignore[method-assign, assignment]
        trainer.add_callback(_StopAfterOneEpoch())
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    if not steps:
        raise UserError(f"{subject.name} took no optimizer step")
    return steps


class _StopAfterOneEpoch(TrainerCallback):
    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = True
        return control


@functools.lru_cache(maxsize=1)
def _inputs(name: str) -> tuple[nn.Module, list[dict[str, Any]], DataCollatorWithPadding]:
    """Load a classifier in float64 and without dropout, rows of uneven length, and what pads them."""
    tokenizer = load_tokenizer(name)
    config = AutoConfig.from_pretrained(locate_model(name), local_files_only=Path(locate_model(name)).is_dir())
    labels = () if config.num_labels == 1 else tuple(config.id2label[index] for index in range(config.num_labels))
    model = load_classifier(name, Task("rows", ("text",), "label", labels), dropout=0.0)
    if tokenizer.pad_token is None:  # as people do it for decoders
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    words = " ".join(load_task(DataSpec(task="mini-sst2")).train.first[: 3 * ROWS]).split()
    rows = []
    for row in range(ROWS):  # of 4 to 15 words
        label = 0.1 * row if config.num_labels == 1 else row % config.num_labels
        text = " ".join(words[5 * row :][: 4 + row])
        rows.append({**tokenizer(text), "labels": label})
    return to_float64(model), rows, DataCollatorWithPadding(tokenizer)


def _trainer_class(file: Path) -> type[Trainer]:
    """Return the subclass of Trainer that a Python file defines last."""
    if not file.is_file():
        raise UserError(f"{file} does not exist")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    own = (value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__)
    classes = [value for value in own if issubclass(value, Trainer)]
    if not classes:
        raise UserError(f"{file} defines no subclass of transformers.Trainer")
    return classes[-1]
