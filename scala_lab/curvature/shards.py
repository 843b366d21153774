"""Batches cut into shards of rows of like length, and the threads that run several shards at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scala_lab.batches import cheapest_cuts, cut

SHARD_COST = 20
"""Cost of a shard beside its tokens, in tokens: it writes and adds up a gradient of the model's size. Measured on a
3-layer encoder of width 384, a shard per core: products are within 4% of the best from 10 to 40."""
MAX_SHARD_TOKENS = 1024
"""Maximum tokens of a shard of several rows, on the CPU. Matrix products are at full speed from some 200 on, and
beside the retained graphs a worker has that of one shard in memory for each core."""
PROBE_ROWS = 4  # rows on which shortcuts are proved
MAX_LANES = 8  # each lane may have a shard's graph in memory at a time


def cut_batch(batch: Mapping[str, Tensor], shard_tokens: int | None = None) -> list[dict[str, Tensor]]:
    """Sort a batch's rows by length, cut them where that is cheapest, and drop columns that are padding in a shard.

    Padding is where `attention_mask` is 0, at the end of rows; a batch that is not padded so stays whole. Shards of
    several rows have at most `shard_tokens` tokens, padding included; default any number.
    """
    lengths = _row_lengths(batch)
    if lengths is None:
        return [dict(batch)]
    order = np.argsort(-lengths, kind="stable")
    token_entries = {
        name for name, value in batch.items() if name != "labels" and value.shape[:2] == batch["attention_mask"].shape
    }
    return [
        {n: value[part, : lengths[part[0]]] if n in token_entries else value[part] for n, value in batch.items()}
        for like in np.split(order, cheapest_cuts(lengths[order], SHARD_COST))
        for part in cut(like, len(like) if shard_tokens is None else max(1, shard_tokens // lengths[like[0]]))
    ]


def probe(batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return a few rows of the batch with most padding, else of the widest, from its shortest to its longest."""

    def padding_and_width(batch: Mapping[str, Tensor]) -> tuple[int, int]:
        width = sum(value[0].numel() for value in batch.values() if value.ndim)
        return _numel(batch) - sum(map(_numel, cut_batch(batch))), width

    batch = max(batches, key=padding_and_width)
    lengths = _row_lengths(batch)
    if lengths is None or len(lengths) <= PROBE_ROWS:
        return dict(batch)
    chosen = np.argsort(lengths)[np.linspace(0, len(lengths) - 1, PROBE_ROWS).astype(int)]
    return {name: value[chosen] for name, value in batch.items()}


def _numel(batch: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in batch.values())


def _row_lengths(batch: Mapping[str, Tensor]) -> np.ndarray | None:
    """Tokens of each row before its padding, or None if the batch is not of rows that are padded at their end."""
    mask = batch.get("attention_mask")
    if mask is None or mask.ndim != 2 or any(value.ndim == 0 or len(value) != len(mask) for value in batch.values()):
        return None
    real = mask.bool()
    if not real[:, :1].all() or (real[:, 1:] & ~real[:, :-1]).any():
        return None
    return real.sum(1).cpu().numpy()


def lane_count(shards: int, device: torch.device) -> int:
    """Return how many shards are worth running at once."""
    return max(1, min(torch.get_num_threads(), shards, MAX_LANES)) if device.type == "cpu" else 1


def lane_map(lanes: int) -> Callable[..., Iterable[Any]]:
    """Return `map` over lanes: Python threads, each with its own compute threads; one lane is the caller itself.

    Shards are small: cores that share each operation would wait for one another more than they compute. Which shard
    goes to which lane depends on their sizes alone, and lanes are summed in order, so that results repeat to the bit.
    """
    if lanes == 1:
        return map
    threads = max(1, torch.get_num_threads() // lanes)
    return ThreadPoolExecutor(lanes, initializer=partial(torch.set_num_threads, threads)).map


def graph_bytes(outputs: Iterable[Tensor]) -> int:
    """Return the bytes of all storages that the graph behind some tensors has saved, each once, without leaves.

    >>> import torch
    >>> graph_bytes([torch.ones(10, requires_grad=True).exp()])
    40
    """
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    nodes: set[Any] = set(waiting)
    storages: dict[int, int] = {}
    while waiting:
        node = waiting.pop()
        node_type: Any = type(node)
        for name in _saved_names(node_type):
            saved = getattr(node, name)
            for value in saved if isinstance(saved, tuple | list) else (saved,):
                if isinstance(value, Tensor) and not (value.is_leaf and value.requires_grad):
                    storage = value.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        following = {follower for follower, _ in node.next_functions if follower is not None} - nodes
        nodes |= following
        waiting += following
    return sum(storages.values())


@cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    """Attributes with the saved tensors of a node type; `saved_tensors` is that of functions in Python."""
    return tuple(name for name in dir(node_type) if name.startswith("_saved_") or name == "saved_tensors")
