"""The last layer, computed for the one token that is read.

Classifiers of the BERT family read the first token of the last layer. What the last layer's feed-forward block makes of
the other tokens enters no loss, but would be computed, differentiated and multiplied by zero: two ninths of all work in
an encoder of three layers. In these models the last but one LayerNorm stands before that block, so taking the first
token there leaves the logits as they are. The same goes for some projections of the attention before it: only the first
token asks (query), and only its answer goes on (output), a further fourteenth of the work.
Which of this is so for a model is tried, not assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

PROBE_ROWS = 4
"""Rows on which it is tried what a model's logits depend on."""


def same_to_rounding(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to compute logits agree as well as their precision allows."""
    if found.shape != expected.shape:
        return False
    tolerance = 1000 * torch.finfo(expected.dtype).eps * expected.abs().max()
    return bool(((found - expected).abs() <= tolerance).all())


class Call(NamedTuple):
    """One call of a module in a forward pass; layers that share weights call a module several times."""

    module: nn.Module
    number: int


class FirstTokenOnly:
    """Runs a model with its last layer on the first token alone, as far as that changes nothing.

    Attributes:
        norm: The call of a LayerNorm that takes the first token; None for none.
        projections: Calls of linear modules that are computed for the first token, and whether the result is repeated
            for all tokens because the model asks for their number.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.norm: Call | None = None
        self.projections: dict[Call, bool] = {}

    def try_on(self, logits: Callable[[], Tensor]) -> None:
        """Turn on what leaves logits as they are; `logits` runs the model inside `applied`."""
        self.norm, self.projections = None, {}
        with torch.no_grad():
            calls, expected = self._calls(logits)
        norms = [place for place, call in enumerate(calls) if isinstance(call.module, nn.LayerNorm)]
        if len(norms) < 2 or not self._unchanged(logits, expected, calls[norms[-2]], {}):
            return
        self.norm = calls[norms[-2]]
        before = norms[-3] + 1 if len(norms) > 2 else 0
        for call in calls[before : norms[-2]]:
            for repeated in (False, True):
                wider = {**self.projections, call: repeated}
                if self._unchanged(logits, expected, self.norm, wider):
                    self.projections = wider
                    break

    def _calls(self, logits: Callable[[], Tensor]) -> tuple[list[Call], Tensor]:
        """Calls of LayerNorms and linear modules in a forward pass, in their order."""
        calls: list[Call] = []
        counts: Counter[nn.Module] = Counter()

        def note(module: nn.Module, _: tuple[Any, ...]) -> None:
            counts[module] += 1
            calls.append(Call(module, counts[module]))

        watched = [m for m in self._model.modules() if isinstance(m, nn.LayerNorm) or type(m) is nn.Linear]
        handles = [module.register_forward_pre_hook(note) for module in watched]
        try:
            return calls, logits()
        finally:
            _remove(handles)

    def _unchanged(
        self, logits: Callable[[], Tensor], expected: Tensor, norm: Call, projections: dict[Call, bool]
    ) -> bool:
        before = self.norm, self.projections
        self.norm, self.projections = norm, projections
        try:
            with torch.no_grad():
                return same_to_rounding(logits(), expected)
        except (RuntimeError, IndexError):  # the model needs all tokens further on
            return False
        finally:
            self.norm, self.projections = before

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts, the model computes what it needs to."""
        if self.norm is None:
            yield
            return
        narrowed = {self.norm: False, **self.projections}
        counts: Counter[nn.Module] = Counter()
        tokens = 0

        def take_first(module: nn.Module, args: tuple[Any, ...]) -> Any:
            nonlocal tokens
            counts[module] += 1
            if (module, counts[module]) not in narrowed:
                return None
            tokens = args[0].shape[1]
            return (args[0][:, :1],)

        def repeat(module: nn.Module, _: tuple[Any, ...], output: Tensor) -> Any:
            return output.expand(-1, tokens, -1) if narrowed.get(Call(module, counts[module])) else None

        handles = [module.register_forward_pre_hook(take_first) for module in {call.module for call in narrowed}]
        repeating = {call.module for call, repeated in narrowed.items() if repeated}
        handles += [module.register_forward_hook(repeat) for module in repeating]
        try:
            yield
        finally:
            _remove(handles)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
