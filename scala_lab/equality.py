"""Compare training, evaluation and sharpness of a model with plain transformers, end to end.

Admission compares logits and gradients of a few rows. Here a whole result is compared: weights after some steps of our
trainer, logits of all rows by our evaluation, and products with the Hessian, each with a plain loop over the stock
model that runs every row alone and unpadded, in float64.
"""

import random
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from scala_lab.config import RunSpec
from scala_lab.curvature.checkpoint import sorted_batches
from scala_lab.curvature.eigensolvers import top_eigenpairs
from scala_lab.curvature.loss import stock_product
from scala_lab.curvature.operator import HessianOperator
from scala_lab.data.tokens import Padding, collate
from scala_lab.divergence import task_loss
from scala_lab.errors import UserError
from scala_lab.models.admission import Admission, Float64Islands
from scala_lab.models.architectures import WORDS, save_tiny
from scala_lab.models.loading import load_classifier, to_float64
from scala_lab.optim.build import build_optimizer, rate_factor
from scala_lab.training.distributed import World
from scala_lab.training.preparation import Prepared, admit_model, prepare
from scala_lab.training.trainer import Training, predict_split

EQUAL = 1e-9  # largest relative difference that counts as equal

STEPS, ROWS = 3, 14
ONE_WORKER = World(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Comparison:
    """One use of one model: the measured difference, or the reason why it is refused."""

    use: str
    difference: float | None
    refusal: str = ""

    @property
    def equal(self) -> bool:
        """Whether the result is the stock model's."""
        return self.difference is not None and self.difference <= EQUAL

    def __str__(self) -> str:
        if self.difference is None:
            return f"refused: {self.refusal}"
        return f"{'equal to stock' if self.equal else 'NOT EQUAL'} ({self.difference:.0e})"


def compare_architecture(model_type: str) -> list[Comparison]:
    """Compare every use of an architecture's tiny classifier with the stock model, on random rows."""
    with tempfile.TemporaryDirectory(prefix="scala-lab-") as folder:
        try:
            model = save_tiny(Path(folder, "model"), model_type)
        except UserError as error:
            return [Comparison(use, None, str(error)) for use in MEASURES]
        spec = _spec(model, _write_rows(Path(folder, "rows.csv")))
        with Float64Islands():
            return [_compare(use, spec) for use in MEASURES]


def _compare(use: str, spec: RunSpec) -> Comparison:
    try:
        return Comparison(use, MEASURES[use](spec))
    except UserError as error:
        message = str(error).removeprefix(spec.encoder.model)
        return Comparison(use, None, re.sub(r"^(: | is refused(: |, because ))", "", message).strip())


def train_difference(spec: RunSpec) -> float:
    """Return the largest difference of any weight's change over a few steps, relative to the largest change."""
    prepared = prepare(spec)
    training = Training(spec, prepared, ONE_WORKER)
    training.model.train()
    start = [parameter.detach().clone() for parameter in training.model.parameters()]
    stock = load_classifier(spec.encoder.model, prepared.task, seed=spec.seed, dropout=spec.encoder.dropout)
    to_float64(stock).train()
    optimizer = build_optimizer(stock, spec.optim, training.rate)
    for step in range(STEPS):
        training.accumulate(step)
        training.update(step)
        optimizer.zero_grad(set_to_none=True)
        rows = training.plan.global_batch(step)
        for row in rows:
            inputs, label = _unpadded(prepared, int(row))
            loss = task_loss(stock(**inputs).logits, label, prepared.task.regression).sum()
            (loss / len(rows)).backward()
        if spec.optim.clip_norm:
            torch.nn.utils.clip_grad_norm_(stock.parameters(), spec.optim.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.rate * rate_factor(step, training.steps, spec.optim.warmup)
        optimizer.step()
    weights = zip(training.model.parameters(), stock.parameters(), start, strict=True)
    changes = [(ours.detach() - before, plain.detach() - before) for ours, plain, before in weights]
    scale = max(float(expected.abs().max()) for _, expected in changes)
    return max(float((change - expected).abs().max()) for change, expected in changes) / scale


def evaluate_difference(spec: RunSpec) -> float:
    """Return the largest difference of logits, relative to their largest spread over rows."""
    prepared, stock, ours, admission = _load_pair(spec)
    logits = predict_split(admission.encoder(ours), prepared.train, 4, admission.padding, ONE_WORKER)
    with torch.no_grad():
        rows = range(len(prepared.train))
        expected = torch.cat([stock(**_unpadded(prepared, row)[0]).logits for row in rows]).numpy()
    spread = max(np.ptp(expected, axis=0).max(), 1e-3 * np.abs(expected).max())  # of a head equal on all rows
    return float(np.abs(logits - expected).max() / spread)


def sharpness_difference(spec: RunSpec) -> float:
    """Return the largest relative difference of Hessian products, with the top eigenvector and a random vector."""
    prepared, stock, ours, admission = _load_pair(spec)
    rows = len(prepared.train)
    op = HessianOperator(ours, sorted_batches(prepared.train, np.arange(rows), 4, admission.padding))
    top = top_eigenpairs(op, 1, tol=1e-4).eigenvectors[0]
    random_vector = torch.randn(op.space.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for vector in (top, random_vector):
        expected = torch.zeros_like(vector)
        for row in range(rows):
            expected += stock_product(stock, *_unpadded(prepared, row), vector)
        expected /= rows
        worst = max(worst, float((op @ vector - expected).norm() / expected.norm()))
    return worst


MEASURES = {"train": train_difference, "evaluate": evaluate_difference, "sharpness": sharpness_difference}


def _unpadded(prepared: Prepared, row: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs and the label of one row, alone and unpadded."""
    batch = collate(prepared.train, np.array([row]), Padding())
    return batch, batch.pop("labels")


def _load_pair(spec: RunSpec) -> tuple[Prepared, nn.Module, nn.Module, Admission]:
    """Load the rows and the model twice, once to stay stock and once to be admitted."""
    prepared, name = prepare(spec), spec.encoder.model
    stock, ours = (load_classifier(name, prepared.task, seed=spec.seed) for _ in range(2))
    for model in (stock, ours):
        to_float64(model).eval()
    return prepared, stock, ours, admit_model(ours, prepared, name, use="predict")


def _spec(model: Path, rows: Path) -> RunSpec:
    values = {"task": str(rows), "text_columns": ("text",), "label_column": "label", "eval_file": rows}
    values |= {"model": str(model), "method": "plain", "dropout": 0.0, "lr": 1e-3, "weight_decay": 0.1}
    values |= {"eps": 1e-3}  # so that Adam's steps do not depend on gradients that are zero but for rounding
    values |= {"batch_size": 6, "micro_batch": 4, "epochs": 2, "precision": "float64", "threads": 1}
    return RunSpec.of(**values).resolved()


def _write_rows(file: Path) -> Path:
    """Write rows of uneven length, the last one of a single word."""
    rng = random.Random(0)
    lines = ["text,label"]
    for row in range(ROWS):
        length = 1 if row == ROWS - 1 else rng.randint(2, 12)
        lines.append(f"{' '.join(rng.choice(WORDS) for _ in range(length))},{row % 2}")
    file.write_text("\n".join([*lines, ""]))
    return file
