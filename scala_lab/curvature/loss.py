"""The stock model's loss and Hessian product, and flat vectors over chosen parameters."""

import copy
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scala_lab.divergence import task_loss
from scala_lab.errors import UserError
from scala_lab.models.encoder import eval_mode, plain_table, without_cache


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


def word_table(model: nn.Module) -> str | None:
    """Return the name of the word-embedding table, if it is a plain one."""
    weight = getattr(plain_table(model), "weight", None)
    return next((name for name, value in model.named_parameters() if value is weight), None)


def is_regression(model: nn.Module, labels: Sequence[Tensor]) -> bool:
    """Return whether the loss is a squared error: by the model's config, else by its outputs and the labels."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "problem_type", None) is not None:
        return config.problem_type == "regression"
    return getattr(config, "num_labels", 2) == 1 or any(part.is_floating_point() for part in labels)


def stock_logits(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the model's own forward pass, in eval mode, by the attention with a second derivative."""
    with eval_mode(model), sdpa_kernel(SDPBackend.MATH):
        return model(**inputs, **without_cache(model)).logits


def stock_product(model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor, vector: Tensor) -> Tensor:
    """Multiply the Hessian of a batch's mean loss by a vector over all parameters, by differentiating the gradient."""
    weights = list(model.parameters())
    pieces = _views(vector, [weight.shape for weight in weights])
    loss = task_loss(stock_logits(model, inputs), labels, is_regression(model, [labels])).mean()
    grads = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    products = [(grad * piece).sum() for grad, piece in zip(grads, pieces, strict=True) if grad is not None]
    columns = torch.autograd.grad(torch.stack(products).sum(), weights, allow_unused=True)
    parts = [torch.zeros_like(w) if column is None else column for w, column in zip(weights, columns, strict=True)]
    return torch.cat([part.flatten() for part in parts])


def with_pad_token(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> nn.Module:
    """Return the model, or a shallow copy with a pad token if its head needs one and its config has none.

    Heads of decoders find the last token of a row by the pad token. It is an id that no token of the batches has, and
    takes the place of their padding.
    """
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        return model
    text_config = config.get_text_config()
    if getattr(text_config, "pad_token_id", 0) is not None or all(len(batch["labels"]) == 1 for batch in batches):
        return model
    if not all({"input_ids", "attention_mask"} <= set(batch) for batch in batches):
        return model
    present = torch.cat([batch["input_ids"][batch["attention_mask"].bool()] for batch in batches]).unique()
    pad_token = max(set(range(text_config.vocab_size)) - set(present.tolist()), default=None)
    if pad_token is None:
        return model
    for batch in batches:
        batch["input_ids"] = batch["input_ids"].masked_fill(~batch["attention_mask"].bool(), pad_token)
    model, own = copy.copy(model), copy.deepcopy(config)
    own.get_text_config().pad_token_id = pad_token
    model.config = own
    return model
