"""Run the last layer for the first token alone, where a classifier's head provably reads no other.

Classifiers of the BERT family read the first token of the last layer. What the last feed-forward block makes of the
other tokens enters no loss, but would be computed, differentiated and multiplied by zero: two ninths of all work in an
encoder of three layers. Taking the first token before the last but one LayerNorm leaves that out. The query and the
output projection of the attention before it are read for the first token only, too: a further fourteenth.

Whether this holds is proved, not assumed, on a model with random weights in float64: the derivative of the logits by
what would be left out must be exactly zero, entry by entry, on rows of several lengths. Exact zeros come from the
structure of the graph (nothing reads these numbers), not from small weights, so the proof holds for all weights. Keys
and values are read by the first token's query, have derivatives, and are never narrowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SAME = 1e-11
"""Largest relative difference of float64 logits that another order of summation explains."""


class Call(NamedTuple):
    """One call of a module in a forward pass; layers that share weights call a module several times."""

    module: str
    number: int


@dataclass(frozen=True)
class Narrowing:
    """What a model computes for the first token alone: the input of a LayerNorm call, and some linear calls before it.

    True beside a linear call expands its result to all tokens again, because the model needs their number.
    """

    norm: Call | None = None  # None narrows nothing
    projections: tuple[tuple[Call, bool], ...] = ()

    @property
    def calls(self) -> list[Call]:
        """All narrowed calls."""
        return [call for call, _ in self.projections] + ([] if self.norm is None else [self.norm])


@contextmanager
def narrowed(model: nn.Module, narrowing: Narrowing) -> Iterator[None]:
    """Run the model with this narrowing inside the block."""
    if narrowing.norm is None:
        yield
        return
    expanded = {narrowing.norm: False, **dict(narrowing.projections)}
    counts: Counter[str] = Counter()
    tokens = 0

    def take_first(name: str, _: nn.Module, args: tuple[Any, ...]) -> Any:
        nonlocal tokens
        counts[name] += 1
        if (name, counts[name]) not in expanded:
            return None
        tokens = args[0].shape[1]
        return (args[0][:, :1],)

    def expand(name: str, _: nn.Module, __: Any, output: Tensor) -> Any:
        return output.expand(-1, tokens, -1) if expanded.get(Call(name, counts[name])) else None

    with ExitStack() as hooks:
        for name in {call.module: None for call in expanded}:
            module = model.get_submodule(name)
            hooks.enter_context(module.register_forward_pre_hook(partial(take_first, name)))
            if any(call.module == name and expand_again for call, expand_again in expanded.items()):
                hooks.enter_context(module.register_forward_hook(partial(expand, name)))
        yield


def prove_narrowing(model: nn.Module, run: Callable[[], Tensor]) -> Narrowing:
    """Return the widest narrowing that provably changes nothing; an empty one where nothing can be proved.

    Args:
        model: In float64 and eval mode, with weights none of which are zero by design: see `admission.random_twin`.
        run: Computes the model's logits, by its own forward pass, on rows of several lengths.
    """
    calls, expected = _record_calls(model, run)
    norms = [index for index, (_, _, is_norm) in enumerate(calls) if is_norm]
    if len(norms) < 2:
        return Narrowing()
    candidates = calls[norms[-3] + 1 if len(norms) > 2 else 0 : norms[-2] + 1]
    weights = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(0))
    tensors = [tensor for _, tensor, _ in candidates]
    gradients = torch.autograd.grad((expected * weights.to(expected)).sum(), tensors, allow_unused=True)
    unread = [call for (call, _, _), grad in zip(candidates, gradients, strict=True) if _reads_first_only(grad)]
    norm = candidates[-1][0]
    proved = Narrowing(norm)
    if norm not in unread or not _unchanged(model, run, expected, proved):
        return Narrowing()
    for call in unread[:-1]:
        for expand_again in (False, True):
            wider = Narrowing(norm, (*proved.projections, (call, expand_again)))
            if _unchanged(model, run, expected, wider):
                proved = wider
                break
    return proved


def _record_calls(model: nn.Module, run: Callable[[], Tensor]) -> tuple[list[tuple[Call, Tensor, bool]], Tensor]:
    """Return the calls of LayerNorm (its input, True) and linear modules (their output, False), and the logits."""
    calls: list[tuple[Call, Tensor, bool]] = []
    counts: Counter[str] = Counter()

    def record(name: str, module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        counts[name] += 1
        is_norm = isinstance(module, nn.LayerNorm)
        tensor = next(iter(args), None) if is_norm else output
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            calls.append((Call(name, counts[name]), tensor, is_norm))

    with ExitStack() as hooks, torch.enable_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm):
                hooks.enter_context(module.register_forward_pre_hook(partial(record, name)))
            elif type(module) is nn.Linear:
                hooks.enter_context(module.register_forward_hook(partial(record, name)))
        return calls, run()


def _reads_first_only(gradient: Tensor | None) -> bool:
    """Whether a derivative, (samples, tokens, width), is exactly zero but on the first token."""
    if gradient is None or gradient.ndim != 3 or gradient.shape[1] < 2:
        return False
    active = int(gradient[:, 0].any(-1).sum())  # a row on which all ReLUs of the head are off proves nothing
    return not bool(gradient[:, 1:].any()) and active >= min(2, len(gradient))


def _unchanged(model: nn.Module, run: Callable[[], Tensor], expected: Tensor, narrowing: Narrowing) -> bool:
    """Whether the model runs with a narrowing, and gives the same logits."""
    try:
        with torch.no_grad(), narrowed(model, narrowing):
            logits = run()
    except (RuntimeError, IndexError, ValueError):  # the model needs all tokens further on
        return False
    return logits.shape == expected.shape and bool((logits - expected).abs().max() <= SAME * expected.abs().max())
