"""Whether training, evaluation and sharpness of a model are what plain transformers gives, measured end to end.

Admission looks at logits and gradients of a few rows. Here a whole result is compared: weights after some steps of our
trainer, logits of all rows by our evaluation, and products with the Hessian, each beside a plain loop over the stock
model that runs every row alone and unpadded, in float64. `scala-lab architectures` prints the result for every
architecture of the installed transformers.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scala_lab.config import RunSpec
from scala_lab.curvature.checkpoint import sorted_batches
from scala_lab.curvature.eigensolvers import top_eigenpairs
from scala_lab.curvature.loss import stock_product
from scala_lab.curvature.operator import HessianOperator
from scala_lab.data.tokens import Padding, collate
from scala_lab.errors import UserError
from scala_lab.methods.base import task_loss
from scala_lab.models.admission import Float64Islands
from scala_lab.models.loading import load_classifier, to_float64
from scala_lab.optim.build import build_optimizer, rate_factor
from scala_lab.training.distributed import World
from scala_lab.training.preparation import Prepared, admit_model, prepare
from scala_lab.training.trainer import Training, predict_split

EQUAL = 1e-9
"""Largest relative difference that counts as equal."""

STEPS, BATCH, ROWS = 3, 6, 14
USES = ("train", "evaluate", "sharpness")
ALONE = World(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Comparison:
    """One use of one model: the measured difference, or the sentence with which it is refused."""

    use: str
    difference: float | None
    refusal: str = ""

    @property
    def equal(self) -> bool:
        """Whether the result is the stock model's."""
        return self.difference is not None and self.difference <= EQUAL


def compare(model: Path, words: list[str], folder: Path) -> list[Comparison]:
    """Compare every use of a model with the stock one, on random rows of its words.

    Args:
        model: Folder of a classifier with two classes and its tokenizer.
        words: Words that the tokenizer knows.
        folder: Where a file of rows is written.
    """
    spec = _spec(model, _write_rows(folder / "rows.csv", words))
    measures: dict[str, Callable[[RunSpec], float]] = {
        "train": train_difference,
        "evaluate": evaluate_difference,
        "sharpness": sharpness_difference,
    }
    found = []
    with Float64Islands():
        for use, measure in measures.items():
            try:
                found.append(Comparison(use, measure(spec)))
            except UserError as error:
                found.append(Comparison(use, None, _REFUSED.sub("", str(error).removeprefix(f"{model}"))))
    return found


_REFUSED = re.compile(r"^(: | is refused(: |, because ))")
"""What a refusal says before its reason."""


def train_difference(spec: RunSpec) -> float:
    """The largest relative difference of any weight tensor's change over a few steps."""
    prepared = prepare(spec)
    training = Training(spec, prepared, ALONE)
    training.model.train()
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    for step in range(STEPS):
        training.accumulate(step)
        training.update(step)
    stock = load_classifier(spec.encoder.model, prepared.task, seed=spec.seed, dropout=spec.encoder.dropout)
    to_float64(stock).train()
    optimizer = build_optimizer(stock, spec.optim, training.rate)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        rows = training.plan.global_batch(step)
        for row in rows:
            (row_loss(stock, prepared, int(row)) / len(rows)).backward()
        if spec.optim.clip_norm:
            torch.nn.utils.clip_grad_norm_(stock.parameters(), spec.optim.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.rate * rate_factor(step, training.steps, spec.optim.warmup)
        optimizer.step()
    pairs = zip(training.model.parameters(), stock.parameters(), before, strict=True)
    moves = [(ours.detach() - start, theirs.detach() - start) for ours, theirs, start in pairs]
    scale = max(float(theirs.abs().max()) for _, theirs in moves)
    return max(float((ours - theirs).abs().max()) for ours, theirs in moves) / scale


def evaluate_difference(spec: RunSpec) -> float:
    """The largest difference of logits, relative to their largest spread over rows."""
    prepared = prepare(spec)
    split = prepared.train
    stock, ours = (_loaded(spec, prepared) for _ in range(2))
    admission = admit_model(ours, prepared, spec.encoder.model, use="predict")
    logits = predict_split(admission.encoder(ours), split, 4, admission.padding, ALONE)
    with torch.no_grad():
        alone = torch.cat([stock(**_inputs(prepared, row)).logits for row in range(len(split))]).numpy()
    spread = max(np.ptp(alone, axis=0).max(), 1e-3 * np.abs(alone).max())  # of a head that says the same of all rows
    return float(np.abs(logits - alone).max() / spread)


def sharpness_difference(spec: RunSpec) -> float:
    """The largest relative difference of Hessian products, with the top eigenvector and with a random vector."""
    prepared = prepare(spec)
    stock, ours = (_loaded(spec, prepared) for _ in range(2))
    padding = admit_model(ours, prepared, spec.encoder.model, use="predict").padding
    op = HessianOperator(ours, sorted_batches(prepared.train, np.arange(len(prepared.train)), 4, padding))
    top = top_eigenpairs(op, 1, tol=1e-4).eigenvectors[0]
    random_vector = torch.randn(op.space.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for vector in (top, random_vector):
        expected = _stock_product(stock, prepared, vector)
        worst = max(worst, float((op @ vector - expected).norm() / expected.norm()))
    return worst


def row_loss(stock: nn.Module, prepared: Prepared, row: int) -> Tensor:
    """The task loss of one row, alone and unpadded, by the stock model."""
    label = torch.as_tensor(prepared.train.labels[[row]])
    return task_loss(stock(**_inputs(prepared, row)).logits, label, prepared.task.regression).sum()


def _inputs(prepared: Prepared, row: int) -> dict[str, Tensor]:
    batch = collate(prepared.train, np.array([row]), Padding())
    return {name: value for name, value in batch.items() if name != "labels"}


def _stock_product(stock: nn.Module, prepared: Prepared, vector: Tensor) -> Tensor:
    """The Hessian of the mean loss times a vector, one row after another."""
    total = torch.zeros_like(vector)
    for row in range(len(prepared.train)):
        label = torch.as_tensor(prepared.train.labels[[row]])
        total += stock_product(stock, _inputs(prepared, row), label, vector)
    return total / len(prepared.train)


def _loaded(spec: RunSpec, prepared: Prepared) -> Any:
    return to_float64(load_classifier(spec.encoder.model, prepared.task, seed=spec.seed)).eval()


def _spec(model: Path, rows: Path) -> RunSpec:
    values = {"task": str(rows), "text_columns": ("text",), "label_column": "label", "eval_file": rows}
    values |= {"model": str(model), "method": "plain", "dropout": 0.0, "lr": 1e-3, "weight_decay": 0.1}
    values |= {"eps": 1e-3}  # an Adam whose steps do not hang on gradients that are zero but for rounding
    values |= {"batch_size": BATCH, "micro_batch": 4, "epochs": 2, "precision": "float64", "threads": 1}
    return RunSpec.of(**values).resolved()


def _write_rows(file: Path, words: list[str]) -> Path:
    """Rows of uneven length, the last one of a single word."""
    rng = random.Random(0)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for row in range(ROWS):
            length = 1 if row == ROWS - 1 else rng.randint(2, 12)
            writer.writerow([" ".join(rng.choice(words) for _ in range(length)), row % 2])
    return file
