"""The one place that knows how to run a model from word embeddings plus noise."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scala_lab.models.attention import quicken_attention
from scala_lab.models.dropout import dropout_rates, quicken_dropout
from scala_lab.models.first_token import PROBE_ROWS, FirstTokenOnly


class Encoder:
    """A sequence classifier seen from its word embeddings e = E[ids].

    `embed` looks words up, `logits` runs everything after that (position and type embeddings, LayerNorm,
    layers, head). Noise is added between the two:

        e_BLD = encoder.embed(inputs)
        z_BC = encoder.logits(e_BLD + delta_BLD, inputs)

    Gradients reach the table through `embed`. On CPU its backward adds the looked-up rows straight into
    the table's gradient: the stock backward fills a zero tensor as large as the whole table for every
    micro-batch, which costs more than a layer of a small encoder.

    The model's dropout and attention become quick ones, and its last layer runs for the first token alone where its
    head reads no other.
    """

    def __init__(self, model: nn.Module, *, autocast: torch.dtype | None = None) -> None:
        quicken_dropout(model)
        quicken_attention(model)
        self.model = model
        self.autocast = autocast
        self._first_token = FirstTokenOnly(model)
        self._tried = False
        table: Any = model.get_input_embeddings()  # type: ignore[operator]
        self._table = table
        self._plain_table = (
            type(table) is nn.Embedding
            and not (table.max_norm or table.scale_grad_by_freq or table.sparse)
            and not table._forward_hooks
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._table.weight.device

    @functools.cached_property
    def drops_out(self) -> bool:
        """Whether the model has dropout, by the rates in its config."""
        return any(dropout_rates(self.model.config).values())

    def embed(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Word embeddings of a batch, (samples, tokens, width)."""
        weight, ids = self._table.weight, inputs["input_ids"]
        in_place = self._plain_table and weight.is_cpu and weight.grad is not None and torch.is_grad_enabled()
        if in_place and weight.requires_grad:
            return _InPlaceLookup.apply(weight, ids, self._table.padding_idx)
        return self._table(ids)

    def logits(self, embeddings: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Outputs of the head, (samples, classes), in at least float32."""
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        return self._run(inputs_embeds=embeddings, **rest)

    def predict(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Outputs of the head from token ids."""
        return self._run(**inputs)

    def _run(self, **inputs: Tensor) -> Tensor:
        if not self._tried:
            self._try_first_token(inputs)
        with (
            self._first_token.applied(),
            torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None),
        ):
            logits = self.model(**inputs).logits
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _try_first_token(self, inputs: Mapping[str, Tensor]) -> None:
        """Have the last layer run for the first token alone, as far as a few rows keep their logits by it."""
        rows = {name: value[:PROBE_ROWS].detach() for name, value in inputs.items()}
        if not _longer_than_one(rows):
            return  # rows of one token say nothing about the others

        def logits() -> Tensor:
            with self._first_token.applied():
                return self.model(**rows).logits

        self._tried = True
        if self._table.weight.dtype in (torch.float32, torch.float64):
            with self.dropout_off():
                self._first_token.try_on(logits)

    @contextmanager
    def dropout_off(self) -> Iterator[None]:
        """Run the block in eval mode."""
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Run the block without autocast."""
        autocast, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = autocast


def _longer_than_one(rows: Mapping[str, Tensor]) -> bool:
    mask = rows.get("attention_mask")
    if mask is None:
        return next(iter(rows.values())).shape[1] > 1
    return bool((mask.sum(1) > 1).any())


class _InPlaceLookup(torch.autograd.Function):
    """E[ids] whose backward adds into E.grad, which must exist, instead of returning a dense gradient."""

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
            kept = flat != ctx.padding_idx
            rows, flat = rows[kept], flat[kept]
        ctx.weight.grad.index_add_(0, flat, rows)
        return None, None, None
