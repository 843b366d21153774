"""Which rows a Hessian is taken over: fixed, seeded, disjoint sets, cut into length-sorted batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.errors import UserError
from scala_lab.tasks.tokens import Padding, TokenSplit, collate, cut_by_length

if TYPE_CHECKING:
    import torch


def disjoint_sets(split: TokenSplit, samples: int, repeats: int, seed: int) -> list[np.ndarray]:
    """`repeats` sets of `samples` rows, no row twice; the first set does not depend on how many there are."""
    if samples * repeats > len(split):
        asked = f"{samples} rows" if repeats == 1 else f"{repeats} disjoint sets of {samples} rows"
        raise UserError(f"{asked} were asked for, but there are {len(split)}")
    order = np.random.default_rng([seed, 4]).permutation(len(split))
    return [order[part * samples : (part + 1) * samples] for part in range(repeats)]


def sorted_batches(
    split: TokenSplit, rows: np.ndarray, micro_batch: int, padding: Padding, rank: int = 0, workers: int = 1
) -> list[dict[str, torch.Tensor]]:
    """A worker's share of some rows as batches for a model: sorted by length, so that little is padded."""
    longest_first = rows[np.argsort(-split.lengths[rows], kind="stable")]
    mine = longest_first[rank::workers]
    return [collate(split, part, padding) for part in cut_by_length(split, mine, micro_batch, padding)]
