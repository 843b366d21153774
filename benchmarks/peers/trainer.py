"""transformers.Trainer on the rows and the model of one of our runs."""

from __future__ import annotations

import tempfile
import time
from typing import Any, Literal

from scala_lab import RunSpec
from scala_lab.data.tokens import TokenSplit
from scala_lab.models.loading import load_classifier
from scala_lab.training.preparation import prepare

Padding = Literal["dynamic", "max length"]


class TrainerSide:
    """What a Trainer user runs.

    Args:
        spec: Names task, rows, encoder, batch size and rate.
        micro_batch: Rows at once; the rest of a batch is accumulated.
        padding: dynamic: to the longest row of a micro-batch; max length: to 128, the default of run_glue.
    """

    def __init__(self, spec: RunSpec, micro_batch: int, padding: Padding = "dynamic") -> None:
        from transformers import DataCollatorWithPadding

        self.spec = spec = spec.resolved()
        self.prepared = prepare(spec)
        self.batch_size, self.micro_batch = spec.batches.batch_size, min(micro_batch, spec.batches.batch_size)
        to_full_length: dict[str, Any] = {"padding": "max_length", "max_length": spec.data.max_length}
        self.collator = DataCollatorWithPadding(
            self.prepared.tokenizer, **(to_full_length if padding == "max length" else {})
        )
        self.rows = as_dataset(self.prepared.train)
        self.model = self.fresh_model()

    def fresh_model(self) -> Any:
        """The encoder as loaded from disk, with a new head."""
        return load_classifier(self.spec.encoder.model, self.prepared.task)

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` optimizer steps after one that warms up."""
        from transformers import TrainerCallback

        seconds: list[float] = []

        class Stopwatch(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.started = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                seconds.append(time.perf_counter() - self.started)

        self._train(self.model, callbacks=[Stopwatch()], max_steps=count + 1, learning_rate=1e-4)
        return seconds[1:]

    def whole_run(self, learning_rate: float) -> dict[str, float]:
        """Train all epochs from fresh weights and evaluate at the end; returns the evaluation's metrics."""
        trainer = self._train(
            self.fresh_model(),
            num_train_epochs=self.spec.optim.epochs,
            learning_rate=learning_rate,
            per_device_eval_batch_size=2 * self.micro_batch,
            seed=self.spec.seed,
        )
        (dev,) = self.prepared.evals.values()
        return trainer.evaluate(as_dataset(dev))

    def _train(self, model: Any, callbacks: Any = None, **arguments: Any) -> Any:
        from transformers import Trainer, TrainingArguments

        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model,
                TrainingArguments(
                    folder,
                    per_device_train_batch_size=self.micro_batch,
                    gradient_accumulation_steps=self.batch_size // self.micro_batch,
                    save_strategy="no",
                    logging_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    use_cpu=True,
                    dataloader_num_workers=0,
                    **arguments,
                ),
                data_collator=self.collator,
                train_dataset=self.rows,
                callbacks=callbacks,
            )
            trainer.train()
        return trainer


def as_dataset(split: TokenSplit) -> Any:
    """Token ids of a split as the Dataset that a Trainer takes."""
    from datasets import Dataset

    places = list(zip(split.offsets[:-1].tolist(), split.offsets[1:].tolist(), strict=True))
    columns = {"input_ids": [split.ids[start:end].tolist() for start, end in places], "label": split.labels.tolist()}
    if split.type_ids is not None:
        columns["token_type_ids"] = [split.type_ids[start:end].tolist() for start, end in places]
    return Dataset.from_dict(columns)
