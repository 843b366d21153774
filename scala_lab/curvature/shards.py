"""Batches cut into shards of rows of like length, run side by side on the cores.

Batches cut into shards of rows of like length, so that products spend little on padding.

A batch that was padded to its longest row is mostly padding for its shortest ones. Here its rows are sorted by length
and cut where that is cheapest; each shard loses the columns that are padding in all of its rows. Masked columns do not
enter a sample's loss, so nothing changes but rounding; `operator.proved_shortcuts` shows whether that is true.

Several shards at once on the cores of one worker.

Shards are small, so that two cores that share the work of each operation wait for each other more than they compute.
Here every lane, a Python thread, takes whole shards and has its share of the compute threads to itself: autograd runs a
CPU graph in the thread that asks for it and lets go of the interpreter meanwhile. Which shard goes to which lane is a
function of their sizes alone, and lanes are summed in order, so that the same machine gives the same bits every time.

How many bytes the graph of a computation keeps alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from scala_lab.batches import cheapest_cuts, cut

SHARD_COST = 20
"""What a shard costs beside its tokens, in tokens: it writes and adds up a gradient of the model's size.

Measured on a 3-layer encoder of width 384, a shard per core: products are within 4% of the best from 10 to 40.
"""

PROBE_ROWS = 4
"""Rows on which it is shown what need not be computed."""

SHARD_TOKENS = 1024
"""Most tokens of a shard that has several rows, on the CPU. Matrix products are at full speed from some 200 on, and
beside the kept graphs a worker holds that of one shard on each core."""


def cut_batch(
    batch: Mapping[str, Tensor], shard_cost: int = SHARD_COST, shard_tokens: int | None = None
) -> list[dict[str, Tensor]]:
    """The rows of a batch in shards without needless padding; the batch itself where padding cannot be told.

    Padding is what `attention_mask` is 0 on, at the end of rows.

    Args:
        batch: Padded rows.
        shard_cost: Of a shard beside its tokens, in tokens.
        shard_tokens: Most tokens of a shard that has several rows, padding included; default any number.
    """
    lengths = _row_lengths(batch)
    if lengths is None:
        return [dict(batch)]
    order = np.argsort(-lengths, kind="stable")
    token_entries = {
        name for name, value in batch.items() if name != "labels" and value.shape[:2] == batch["attention_mask"].shape
    }
    return [
        {
            name: value[part, : lengths[part[0]]] if name in token_entries else value[part]
            for name, value in batch.items()
        }
        for like in np.split(order, cheapest_cuts(lengths[order], shard_cost))
        for part in cut(like, len(like) if shard_tokens is None else max(1, shard_tokens // lengths[like[0]]))
    ]


def probe(batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A few rows of the batch with most padding, else of the widest, from its shortest to its longest."""
    batch = max(batches, key=lambda batch: (cells([batch]) - cells(cut_batch(batch)), _cells_of_a_row(batch)))
    lengths = _row_lengths(batch)
    if lengths is None or len(lengths) <= PROBE_ROWS:
        return dict(batch)
    chosen = np.argsort(lengths)[np.linspace(0, len(lengths) - 1, PROBE_ROWS).astype(int)]
    return {name: value[chosen] for name, value in batch.items()}


def cells(batches: Iterable[Mapping[str, Tensor]]) -> int:
    """Numbers in some batches."""
    return sum(value.numel() for batch in batches for value in batch.values())


def _cells_of_a_row(batch: Mapping[str, Tensor]) -> int:
    return sum(value[0].numel() for value in batch.values() if value.ndim)


def _row_lengths(batch: Mapping[str, Tensor]) -> np.ndarray | None:
    """Tokens of each row before its padding, or None if the batch is not of rows that are padded at their end."""
    mask = batch.get("attention_mask")
    if mask is None or mask.ndim != 2 or any(value.ndim == 0 or len(value) != len(mask) for value in batch.values()):
        return None
    real = mask.bool()
    if not real[:, :1].all() or (real[:, 1:] & ~real[:, :-1]).any():
        return None
    return real.sum(1).cpu().numpy()


T = TypeVar("T")
R = TypeVar("R")

MOST_LANES = 8
"""Each lane may hold a shard's graph at a time, so memory grows with them."""


def lane_count(shards: int, device: torch.device) -> int:
    """How many shards are worth running at once."""
    return max(1, min(torch.get_num_threads(), shards, MOST_LANES)) if device.type == "cpu" else 1


class Lanes:
    """Threads with compute threads of their own; one lane is the caller itself."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            threads = max(1, torch.get_num_threads() // count)
            self._pool = ThreadPoolExecutor(count, initializer=lambda: torch.set_num_threads(threads))

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The function of each item, one item per lane, in order."""
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))


def graph_bytes(outputs: Iterable[Tensor]) -> int:
    """Bytes of all storages that the graph behind some tensors has saved, each once; leaves and outputs apart.

    Example:
        >>> import torch
        >>> graph_bytes([torch.ones(10, requires_grad=True).exp()])
        40
    """
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    nodes: set[Any] = set(waiting)
    storages: dict[int, int] = {}
    while waiting:
        node = waiting.pop()
        for tensor in _saved_tensors(node):
            if not (tensor.is_leaf and tensor.requires_grad):
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        following = {follower for follower, _ in node.next_functions if follower is not None} - nodes
        nodes |= following
        waiting += following
    return sum(storages.values())


def _saved_tensors(node: Any) -> Iterator[Tensor]:
    kind: Any = type(node)
    for name in _saved_names(kind):
        saved = getattr(node, name)
        for value in saved if isinstance(saved, tuple | list) else (saved,):
            if isinstance(value, Tensor):
                yield value


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """Attributes under which nodes of a kind show what they saved; `saved_tensors` is that of functions in Python."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")
