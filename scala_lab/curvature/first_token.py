"""The last feed-forward block, computed for the one token that is read.

Classifiers of the BERT family read the first token of the last layer. What the last layer's feed-forward block makes of
the other tokens enters no loss, but would be computed, differentiated and multiplied by zero in every product: two
ninths of all work in an encoder of three layers. In these models the last but one LayerNorm stands before that block,
so taking the first token there leaves the logits as they are. Whether that is so for a model is tried, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Hook = Callable[[nn.Module, tuple[Any, ...]], Any]


def same_to_rounding(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to compute logits agree as well as their precision allows."""
    if found.shape != expected.shape:
        return False
    tolerance = 1000 * torch.finfo(expected.dtype).eps * expected.abs().max()
    return bool(((found - expected).abs() <= tolerance).all())


class FirstTokenOnly:
    """Runs a model with its last feed-forward block on the first token alone, where that changes nothing.

    Attributes:
        call: Which LayerNorm call takes the first token, counted from 1; 0 for none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
        self.call = 0

    def try_on(self, logits: Callable[[], Tensor]) -> None:
        """Turn this on if it leaves logits as they are; `logits` runs the model inside `applied`."""
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        self.call = 0
        with torch.no_grad(), self._hooked(count):
            expected = logits()
        if calls < 2:
            return
        self.call = calls - 1
        try:
            with torch.no_grad():
                unchanged = same_to_rounding(logits(), expected)
        except (RuntimeError, IndexError):  # the model needs all tokens further on
            unchanged = False
        if not unchanged:
            self.call = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts, the model computes what it needs to."""
        seen = 0

        def take_first(module: nn.Module, args: tuple[Any, ...]) -> Any:
            nonlocal seen
            seen += 1
            return (args[0][:, :1],) if seen == self.call else None

        with self._hooked(take_first) if self.call else nullcontext():
            yield

    @contextmanager
    def _hooked(self, hook: Hook) -> Iterator[None]:
        handles = [norm.register_forward_pre_hook(hook) for norm in self.norms]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
