"""How many bytes the graph of a computation keeps alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from torch import Tensor


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
