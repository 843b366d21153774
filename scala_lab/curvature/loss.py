"""The per-sample loss of a batch as a twice differentiable function of flat vectors over chosen parameters."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scala_lab.curvature.autograd import QuickLayers
from scala_lab.divergence import task_loss
from scala_lab.errors import UserError
from scala_lab.models.encoder import eval_mode, plain_table, replaced_embeddings, without_cache
from scala_lab.models.fast_layers import Narrowing, narrowed


def chosen_parameters(model: nn.Module, patterns: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """Return the trainable parameters whose name matches one of the shell patterns, by default all."""
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    patterns = ("*",) if patterns is None else patterns
    chosen = {name for pattern in patterns for name in fnmatch.filter(trainable, pattern)}
    if not chosen:
        some = ", ".join(list(trainable)[:3])
        raise UserError(f"no trainable parameter matches {', '.join(patterns)}: the model has {some}, ...")
    return {name: value for name, value in trainable.items() if name in chosen}


class ParameterSpace:
    """Flat vectors over some of a model's parameters, in the order of `named_parameters`.

    The Hessian is exactly zero on rows of the word-embedding table that no sample uses. Solvers therefore work on
    "touched" vectors, in which the table is replaced by its used rows; `full` and `touched` convert between the two.
    `table_name` is that of the table, if it is looked up by token ids alone, and `used_ids` are sorted.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], table_name: str | None, used_ids: Tensor) -> None:
        self.parameters, self.used_ids = parameters, used_ids
        self.table_name = table_name if table_name in parameters else None
        self.size = sum(value.numel() for value in parameters.values())
        self.shapes = {name: tuple(value.shape) for name, value in parameters.items()}
        if self.table_name is not None:
            self.shapes[self.table_name] = (len(used_ids), *self.shapes[self.table_name][1:])
        self.touched_size = sum(map(math.prod, self.shapes.values()))

    def part(self, names: Sequence[str]) -> ParameterSpace:
        """Return the space over some of these parameters, in their order here."""
        chosen = {name: value for name, value in self.parameters.items() if name in names}
        return ParameterSpace(chosen, self.table_name, self.used_ids)

    def pieces(self, touched: Tensor) -> list[Tensor]:
        """Return a touched vector, or several as rows, as views shaped like the parameters."""
        return _views(touched, self.shapes.values())

    def named_parts(self, full: Tensor) -> dict[str, Tensor]:
        """Return a full vector, or several as rows, as views shaped like the parameters, by name."""
        parts = _views(full, [value.shape for value in self.parameters.values()])
        return dict(zip(self.parameters, parts, strict=True))

    def touched(self, full: Tensor) -> Tensor:
        """Return the touched part of a full vector."""
        if self.table_name is None:
            return full
        parts = self.named_parts(full)
        parts[self.table_name] = parts[self.table_name][self.used_ids]
        return torch.cat([part.flatten() for part in parts.values()])

    def full(self, touched: Tensor) -> Tensor:
        """Return a touched vector, or several as rows, in full length, 0 on rows of the table that are not touched."""
        if self.table_name is None:
            return touched
        result = touched.new_zeros(*touched.shape[:-1], self.size)
        for (name, target), source in zip(self.named_parts(result).items(), self.pieces(touched), strict=True):
            if name == self.table_name:
                target[..., self.used_ids, :] = source
            else:
                target.copy_(source)
        return result


def _views(vectors: Tensor, shapes: Collection[tuple[int, ...]]) -> list[Tensor]:
    parts = vectors.split([math.prod(shape) for shape in shapes], dim=-1)
    return [part.view(*part.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


def on_device(batches: Iterable[Mapping[str, Any]], device: torch.device) -> list[dict[str, Tensor]]:
    """Return batches as tensors on a device."""
    return [{name: torch.as_tensor(value).to(device) for name, value in batch.items()} for batch in batches]


def without_labels(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of a batch."""
    return {name: value for name, value in batch.items() if name != "labels"}


@dataclass(frozen=True)
class Shortcuts:
    """What an operator computes in another way than the stock model, because it was shown to change nothing."""

    cut_padding: bool = False  # batches are cut into shards with little padding
    used_rows: bool = False  # of the word-embedding table only the rows that occur are differentiated by
    fast_layers: bool = False  # linear layers, GELU and LayerNorm have our own derivative rules
    narrowing: Narrowing = field(default_factory=Narrowing)  # what the last layer computes for the first token alone
    side_by_side: bool = True  # shards run at once on the cores


def word_table(model: nn.Module) -> str | None:
    """Return the name of the word-embedding table, if it is a plain one."""
    weight = getattr(plain_table(model), "weight", None)
    return next((name for name, value in model.named_parameters() if value is weight), None)


class BatchLoss:
    """Cross-entropy or squared error per sample, in eval mode, with the shortcuts of an operator.

    `leaves` is what to differentiate by: the parameters of the space, with a copy of the used rows for the table.
    """

    def __init__(
        self, model: nn.Module, space: ParameterSpace, regression: bool, shortcuts: Shortcuts, pad_token: int | None
    ) -> None:
        self.model, self.space, self.regression = model, space, regression
        self.shortcuts, self.pad_token = shortcuts, pad_token
        self._rows, self._padding_index = None, None
        self.leaves: list[Tensor] = list(space.parameters.values())
        if space.table_name is not None:
            index = list(space.parameters).index(space.table_name)
            self.leaves[index] = self._rows = self.leaves[index].detach()[space.used_ids].requires_grad_()
            padding = model.get_input_embeddings().padding_idx  # type: ignore[operator]
            if padding is not None and bool((space.used_ids == padding).any()):  # its gradient stays 0
                self._padding_index = int((space.used_ids < padding).sum())

    def __call__(self, inputs: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        """Return one loss per sample."""
        with ExitStack() as stack:
            stack.enter_context(narrowed(self.model, self.shortcuts.narrowing))
            if self._rows is not None and "input_ids" in inputs:
                rows = torch.searchsorted(self.space.used_ids, inputs["input_ids"])
                embeddings = functional.embedding(rows, self._rows, padding_idx=self._padding_index)
                table: Any = self.model.get_input_embeddings()  # type: ignore[operator]
                stack.enter_context(replaced_embeddings(table, inputs["input_ids"], embeddings))
            if self.shortcuts.fast_layers:
                stack.enter_context(QuickLayers(self.leaves))
            logits = stock_logits(self.model, inputs, self.pad_token)
        return task_loss(logits, labels, self.regression)


def is_regression(model: nn.Module, labels: Sequence[Tensor]) -> bool:
    """Return whether the loss is a squared error: by the model's config, else by its outputs and the labels."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "problem_type", None) is not None:
        return config.problem_type == "regression"
    return getattr(config, "num_labels", 2) == 1 or any(part.is_floating_point() for part in labels)


def stock_logits(model: nn.Module, inputs: Mapping[str, Tensor], pad_token: int | None = None) -> Tensor:
    """Return the logits of the model's own forward pass, in eval mode, by the attention with a second derivative."""
    with eval_mode(model), sdpa_kernel(SDPBackend.MATH), _padded_with(model, pad_token):
        return model(**inputs, **without_cache(model)).logits


def stock_product(
    model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor, vector: Tensor, pad_token: int | None = None
) -> Tensor:
    """Multiply the Hessian of a batch's mean loss by a vector over all parameters, by differentiating the gradient."""
    weights = list(model.parameters())
    pieces = _views(vector, [weight.shape for weight in weights])
    loss = task_loss(stock_logits(model, inputs, pad_token), labels, is_regression(model, [labels])).mean()
    grads = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    products = [(grad * piece).sum() for grad, piece in zip(grads, pieces, strict=True) if grad is not None]
    columns = torch.autograd.grad(torch.stack(products).sum(), weights, allow_unused=True)
    parts = [torch.zeros_like(w) if column is None else column for w, column in zip(weights, columns, strict=True)]
    return torch.cat([part.flatten() for part in parts])


def missing_pad_token(model: nn.Module, batches: Sequence[Mapping[str, Tensor]]) -> int | None:
    """Return an id that no token of the batches has, if the model's head needs a pad token and its config has none.

    Heads of decoders find the last token of a row by the pad token.
    """
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        return None
    config = config.get_text_config()
    if getattr(config, "pad_token_id", 0) is not None or all(len(batch["labels"]) == 1 for batch in batches):
        return None
    if not all({"input_ids", "attention_mask"} <= set(batch) for batch in batches):
        return None
    present = torch.cat([batch["input_ids"][batch["attention_mask"].bool()] for batch in batches]).unique()
    free = sorted(set(range(config.vocab_size)) - set(present.tolist()))
    return free[-1] if free else None


@contextmanager
def _padded_with(model: nn.Module, pad_token: int | None) -> Iterator[None]:
    """Give a model's config a pad token inside the block."""
    if pad_token is None:
        yield
        return
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    before, config.pad_token_id = config.pad_token_id, pad_token
    try:
        yield
    finally:
        config.pad_token_id = before
