"""Logits of every row of a split, computed by all workers, each row exactly once."""

from __future__ import annotations

import numpy as np
import torch

from scala_lab.models.encoder import Encoder
from scala_lab.tasks.metrics import compute_metrics
from scala_lab.tasks.registry import Task
from scala_lab.tasks.tokens import Padding, TokenSplit, collate, cut_by_length
from scala_lab.training.world import World


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
