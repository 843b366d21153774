"""Run a sequence classifier from its word embeddings, so that noise can be added to them."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scala_lab.errors import UserError
from scala_lab.models.fast_layers import Narrowing, drops_out, narrowed, use_fast_dropout


class Encoder:
    """A classifier of transformers in two parts: word embeddings e = E[ids], and everything after them.

        e_BLD = encoder.embed(inputs)
        z_BC = encoder.logits(e_BLD + delta_BLD, inputs)

    The model is called with its token ids, and its word embedding table returns the given embeddings. So whatever else
    a model does with ids (the last token of a decoder, positions counted from the padding) stays right.

    `narrowing` is what the last layer computes for the first token alone, as `admission.admit` proved it. `stochastic`
    says whether the model has dropout, by default as its modules and config say. `autocast` is the precision of matrix
    products, by default that of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        narrowing: Narrowing = (),
        stochastic: bool | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        use_fast_dropout(model)
        self.model = model
        self.narrowing = narrowing
        self.drops_out = drops_out(model) if stochastic is None else stochastic
        self.autocast = autocast
        self._options = without_cache(model)

    @functools.cached_property
    def _table(self) -> Any:
        table = find_word_embeddings(self.model)
        if table is None:
            raise UserError("it has no table of word embeddings that noise could be added to")
        return table

    def embed(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Look up the word embeddings of a batch, (samples, tokens, width)."""
        ids, weight = inputs["input_ids"], getattr(plain_table(self.model), "weight", None)
        accumulates = weight is not None and weight.is_cpu and weight.grad is not None and weight.requires_grad
        if accumulates and torch.is_grad_enabled():
            return _InPlaceLookup.apply(weight, ids, self._table.padding_idx)
        embeddings = self._table(ids)
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 3:
            raise UserError("its word embeddings are not one vector per token, so that noise cannot be added to them")
        return embeddings

    def logits(self, embeddings: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute the outputs of the head from word embeddings: (samples, classes), in at least float32."""
        with replaced_embeddings(self._table, inputs["input_ids"], embeddings):
            return self.predict(inputs)

    def predict(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute the outputs of the head from token ids."""
        device, dtype = next(self.model.parameters()).device.type, self.autocast or torch.bfloat16
        with narrowed(self.model, self.narrowing), torch.autocast(device, dtype, enabled=self.autocast is not None):
            logits = self.model(**inputs, **self._options).logits
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Run the block without autocast."""
        autocast, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = autocast


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run the block in eval mode, without dropout."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return the option that turns off a decoder's cache of keys and values; none for other models."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def find_word_embeddings(model: nn.Module) -> nn.Module | None:
    """Return the module that turns token ids into word embeddings; None where the model has none."""
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return table if isinstance(table, nn.Module) else None


def plain_table(model: nn.Module) -> nn.Embedding | None:
    """Return the word embedding table if a lookup returns its rows as they are, and a gradient changes these alone."""
    table = find_word_embeddings(model)
    if type(table) is not nn.Embedding or table._forward_hooks:
        return None
    return None if table.max_norm or table.scale_grad_by_freq or table.sparse else table


@contextmanager
def replaced_embeddings(table: nn.Module, ids: Tensor, embeddings: Tensor) -> Iterator[None]:
    """Make a word embedding table return these embeddings for these ids inside the block.

    Tokens that a model itself appends (Longformer fills up its attention window) are looked up as usual. A model that
    looks up other ids inside the block, or none, is refused with a UserError.
    """
    own_forward, look_up = table.__dict__.get("forward"), table.forward
    tokens, used = ids.shape[1], False

    def forward(wanted: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal used
        used = True
        if wanted is ids or torch.equal(wanted, ids):
            return embeddings
        if torch.equal(wanted, ids.T):  # XLNet puts tokens before samples
            return embeddings.transpose(0, 1)
        if wanted.ndim == 2 and torch.equal(wanted[:, :tokens], ids):
            return torch.cat([embeddings, look_up(wanted[:, tokens:], *args, **kwargs)], dim=1)
        raise UserError("it looks up other word embeddings than those of its input")

    table.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own_forward is None:
            del table.forward
        else:
            table.forward = own_forward  # type: ignore[method-assign]
    if not used:
        raise UserError("it does not look its word embeddings up in its own table")


class _InPlaceLookup(torch.autograd.Function):
    """Look up E[ids]; backward adds the rows' gradients in place to E.grad, which must exist.

    The stock backward allocates a dense gradient of the whole table for every micro-batch, which on CPU costs more than
    a layer of a small encoder.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding_idx = weight, padding_idx
        return nn.functional.embedding(ids, weight.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # type: ignore[override]
        (ids,) = ctx.saved_tensors
        rows, flat = gradient.reshape(-1, gradient.shape[-1]), ids.reshape(-1)
        if ctx.padding_idx is not None:
            real = flat != ctx.padding_idx
            rows, flat = rows[real], flat[real]
        ctx.weight.grad.index_add_(0, flat, rows)
        return None, None, None
