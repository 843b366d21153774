"""How many bytes the graph of a computation keeps alive."""

from __future__ import annotations

import torch
from torch import Tensor


class SavedBytes:
    """Counts the storages that autograd saves while the block runs, each once.

    Example:
        >>> with SavedBytes() as saved:
        ...     y = torch.ones(10, requires_grad=True).exp()
        >>> saved.bytes
        40
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._seen: set[int] = set()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()

    def _pack(self, tensor: Tensor) -> Tensor:
        if not (isinstance(tensor, torch.nn.Parameter) or (tensor.is_leaf and tensor.requires_grad)):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.bytes += storage.nbytes()
        return tensor
