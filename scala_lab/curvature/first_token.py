"""The last layer, computed for the one token that is read.

Classifiers of the BERT family read the first token of the last layer. What the last layer's feed-forward block makes of
the other tokens enters no loss, but would be computed, differentiated and multiplied by zero in every product: two
ninths of all work in an encoder of three layers. In these models the last but one LayerNorm stands before that block,
so taking the first token there leaves the logits as they are. The same goes for some projections of the attention
before it: only the first token asks (query), and only its answer goes on (output), a further fourteenth of the work;
the attention itself then answers one question in place of as many as there are tokens.
Which of this is so for a model is tried, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def same_to_rounding(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to compute logits agree as well as their precision allows."""
    if found.shape != expected.shape:
        return False
    tolerance = 1000 * torch.finfo(expected.dtype).eps * expected.abs().max()
    return bool(((found - expected).abs() <= tolerance).all())


class FirstTokenOnly:
    """Runs a model with its last layer on the first token alone, as far as that changes nothing.

    Attributes:
        call: Which LayerNorm call takes the first token, counted from 1; 0 for none.
        projections: Which calls of linear modules, counted from 1, are computed for the first token and repeated.
    """

    def __init__(self, model: nn.Module) -> None:
        self.norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
        self.linears = [module for module in model.modules() if type(module) is nn.Linear]
        self.call = 0
        self.projections: frozenset[int] = frozenset()

    def try_on(self, logits: Callable[[], Tensor]) -> None:
        """Turn on what leaves logits as they are; `logits` runs the model inside `applied`."""
        self.call, self.projections = 0, frozenset()
        calls: list[str] = []
        with torch.no_grad(), ExitStack() as hooks:
            for kind, modules in (("norm", self.norms), ("linear", self.linears)):
                hooks.enter_context(_hooked(modules, lambda *_, kind=kind: calls.append(kind)))
            expected = logits()
        norms = calls.count("norm")
        if norms < 2 or not self._unchanged(logits, expected, norms - 1, frozenset()):
            return
        self.call = norms - 1
        for projection in _between(calls, norms - 2, norms - 1):
            wider = self.projections | {projection}
            if self._unchanged(logits, expected, self.call, wider):
                self.projections = wider

    def _unchanged(
        self, logits: Callable[[], Tensor], expected: Tensor, call: int, projections: frozenset[int]
    ) -> bool:
        before = self.call, self.projections
        self.call, self.projections = call, projections
        try:
            with torch.no_grad():
                return same_to_rounding(logits(), expected)
        except (RuntimeError, IndexError):  # the model needs all tokens further on
            return False
        finally:
            self.call, self.projections = before

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts, the model computes what it needs to."""
        norm_calls, linear_calls, length = 0, 0, 0

        def take_first(_: nn.Module, args: tuple[Any, ...]) -> Any:
            nonlocal norm_calls
            norm_calls += 1
            return (args[0][:, :1],) if norm_calls == self.call else None

        def project_first(_: nn.Module, args: tuple[Any, ...]) -> Any:
            nonlocal linear_calls, length
            linear_calls += 1
            if linear_calls not in self.projections:
                return None
            length = args[0].shape[1]
            return (args[0][:, :1],)

        def repeat(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Any:
            return output.expand(-1, length, -1) if linear_calls in self.projections else None

        with ExitStack() as hooks:
            if self.call:
                hooks.enter_context(_hooked(self.norms, take_first))
            if self.projections:
                hooks.enter_context(_hooked(self.linears, project_first, repeat))
                hooks.enter_context(_AskedOnce())
            yield


class _AskedOnce(TorchFunctionMode):
    """Attention of queries that are one query repeated: it is answered once, and the answer repeated."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if (
            function is not functional.scaled_dot_product_attention
            or len(args) != 3  # query, key, value
            or args[0].shape[-2] == 1
            or args[0].stride(-2) != 0
            or named.get("is_causal")
        ):
            return function(*args, **named)
        query, key, value = args
        if named.get("attn_mask") is not None:
            named["attn_mask"] = named["attn_mask"][..., :1, :]
        answer = function(query[..., :1, :], key, value, **named)
        return answer.expand(*query.shape[:-1], -1)


def _between(calls: list[str], first_norm: int, last_norm: int) -> list[int]:
    """Numbers of the linear calls that come after one call of a LayerNorm and before another."""
    found, norms, linears = [], 0, 0
    for kind in calls:
        if kind == "norm":
            norms += 1
        else:
            linears += 1
            if first_norm <= norms < last_norm:
                found.append(linears)
    return found


@contextmanager
def _hooked(modules: Sequence[nn.Module], before: Any, after: Any = None) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(before) for module in modules]
    if after is not None:
        handles += [module.register_forward_hook(after) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
