"""The Hessian of the mean task loss over a fixed set of samples, as something that multiplies vectors.

    H = (1/N) * sum over samples of the second derivative of the UNregularised loss, model in eval mode.

Products are exact over any number of batches: each batch contributes the sum over its samples, divided by the
total N, so a short last batch weighs what it should. Two ways to multiply: where memory allows, the graph of
a batch's gradient is kept and a product is one backward pass through it; the other batches are streamed,
gradient graph and product anew each time, so that memory does not grow with the number of samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scala_lab.curvature.loss import BatchLoss, word_table
from scala_lab.curvature.memory import SavedBytes
from scala_lab.curvature.space import ParameterSpace
from scala_lab.errors import UserError

DEFAULT_BUDGET = 2 << 30
"""Bytes of retained graphs: enough for a few hundred samples of a small encoder, little on any machine."""


@dataclass
class _Shard:
    """One batch, and the graph of its gradient if that is kept."""

    inputs: dict[str, Tensor]
    labels: Tensor
    gradients: list[Tensor | None] | None = None


class HessianOperator:
    """Exact, sample-weighted Hessian of a classifier's mean loss.

    Args:
        model: A transformers model for sequence classification, or any module that takes the batches' entries
            and returns an object with `logits`. Every pass runs in eval mode and computes attention by the
            kernel that has a second derivative; the model itself is left as it was.
        batches: Dicts as the model takes them, `labels` included; of any size, also unequal.
        parameters: Shell patterns of parameter names that restrict H to a block; default all that are trainable.
        budget: Bytes of retained graphs; 0 streams every batch.
        group: Process group; each worker brings its own batches, a product is summed by one all-reduce.
        on_product: Called after every product, for progress bars.

    Attributes:
        samples: N, over all workers.
        products: Products so far.
        space: Goes between full vectors and the touched ones that solvers use.

    Example:
        >>> op = HessianOperator(model, batches)  # doctest: +SKIP
        >>> hv = op @ v  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Mapping[str, Any]],
        *,
        parameters: Sequence[str] | None = None,
        budget: int = DEFAULT_BUDGET,
        group: dist.ProcessGroup | None = None,
        on_product: Callable[[], None] | None = None,
    ) -> None:
        self.group, self.on_product = group, on_product
        self.device = next(model.parameters()).device
        self.products = 0
        self._shards = [self._shard(batch) for batch in batches]
        self.samples = round(self._sum(float(sum(len(shard.labels) for shard in self._shards))))
        if self.samples == 0:
            raise UserError("a Hessian needs at least one sample")
        table = word_table(model)
        used_ids = self._used_ids(table) if table is not None else None
        self.space = ParameterSpace(model, parameters, table, used_ids)
        self._loss = BatchLoss(model, self.space, [shard.labels for shard in self._shards])
        self._check_deterministic()
        self._retain(budget)

    @property
    def shape(self) -> tuple[int, int]:
        """Size of the full matrix."""
        return self.space.size, self.space.size

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of all vectors."""
        return self.space.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        """H v for a full vector over the chosen parameters."""
        if vector.shape != (self.space.size,):
            raise ValueError(f"the operator takes vectors of length {self.space.size}, not shape {tuple(vector.shape)}")
        return self.space.full(self.multiply(self.space.touched(vector.to(self.device, self.dtype))))

    def multiply(self, touched: Tensor) -> Tensor:
        """H v for a touched vector: what solvers iterate with."""
        pieces, result = self.space.pieces(touched), torch.zeros_like(touched)
        for shard in self._shards:
            kept = shard.gradients is not None
            gradients = shard.gradients if shard.gradients is not None else self._gradient_graph(shard)
            self._add(result, self._backward(gradients, pieces, keep=kept))
        self.products += 1
        if self.on_product is not None:
            self.on_product()
        return self._reduced(result)

    def block(self, names: Sequence[str]) -> HessianOperator:
        """The diagonal block of H over some of its parameters, as an operator with a count of its own.

        It shares the retained graphs, and a product walks only the part of them that lies between these parameters.
        """
        places = [place for place, name in enumerate(self.space.parameters) if name in set(names)]
        part = copy.copy(self)
        part.products = 0
        part.space = self.space.part(names)
        part._loss = copy.copy(self._loss)
        part._loss.leaves = [self._loss.leaves[place] for place in places]
        part._shards = [
            shard if shard.gradients is None else replace(shard, gradients=[shard.gradients[place] for place in places])
            for shard in self._shards
        ]
        return part

    def gradient(self) -> Tensor:
        """Gradient of the mean loss as a touched vector."""
        result = torch.zeros(self.space.touched_size, dtype=self.dtype, device=self.device)
        for shard in self._shards:
            found: Sequence[Tensor | None] | None = shard.gradients
            if found is None:
                found = torch.autograd.grad(self._mean_loss(shard), self._loss.leaves, allow_unused=True)
            self._add(result, [gradient if gradient is None else gradient.detach() for gradient in found])
        return self._reduced(result)

    def loss(self) -> float:
        """The mean loss."""
        with torch.no_grad():
            return self._sum(sum(float(self._mean_loss(shard)) for shard in self._shards))

    def _shard(self, batch: Mapping[str, Any]) -> _Shard:
        if "labels" not in batch:
            raise UserError("every batch needs labels: the Hessian is that of the task's loss")
        tensors = {name: torch.as_tensor(value).to(self.device) for name, value in batch.items()}
        labels = tensors.pop("labels")
        return _Shard(tensors, labels)

    def _mean_loss(self, shard: _Shard) -> Tensor:
        """The batch's share of the mean: sum over its samples / N."""
        return self._loss(shard.inputs, shard.labels).sum() / self.samples

    def _gradient_graph(self, shard: _Shard) -> list[Tensor | None]:
        leaves = self._loss.leaves
        return list(torch.autograd.grad(self._mean_loss(shard), leaves, create_graph=True, allow_unused=True))

    def _backward(
        self, gradients: Sequence[Tensor | None], pieces: Sequence[Tensor], keep: bool
    ) -> Sequence[Tensor | None]:
        """d/dw of <gradient, v>: one pass through the graph of the gradient."""
        pairs = [
            (gradient, piece)
            for gradient, piece in zip(gradients, pieces, strict=True)
            if gradient is not None and gradient.requires_grad
        ]
        if not pairs:
            return [None] * len(pieces)
        outputs, vectors = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, self._loss.leaves, vectors, retain_graph=keep, allow_unused=True)

    def _add(self, touched: Tensor, parts: Sequence[Tensor | None]) -> None:
        for piece, part in zip(self.space.pieces(touched), parts, strict=True):
            if part is not None:
                piece += part

    def _retain(self, budget: int) -> None:
        """Keep graphs, in the order of the batches, as long as they fit the budget."""
        left = budget
        for shard in self._shards:
            with SavedBytes() as saved:
                gradients = self._gradient_graph(shard)
            left -= saved.bytes
            if left < 0:
                return
            shard.gradients = gradients

    def _check_deterministic(self) -> None:
        """Refuse a model that gives two answers to one question: no solver converges on such an operator."""
        if self._shards:
            with torch.no_grad():
                first, second = (float(self._mean_loss(self._shards[0])) for _ in range(2))
            if first != second:
                raise UserError(
                    f"the model gives two losses, {first} and {second}, for one batch, although in eval mode"
                )

    def _used_ids(self, table: str) -> Tensor:
        """Sorted ids of the tokens that any worker's samples use."""
        ids = [shard.inputs["input_ids"].flatten() for shard in self._shards if "input_ids" in shard.inputs]
        local = torch.cat(ids).unique() if ids else torch.empty(0, dtype=torch.long, device=self.device)
        if self.group is None:
            return local
        gathered: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(gathered, local.cpu(), group=self.group)
        return torch.cat(gathered).unique().to(self.device)

    def _reduced(self, vector: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(vector, group=self.group)
        return vector

    def _sum(self, number: float) -> float:
        return float(self._reduced(torch.tensor(number, dtype=torch.float64, device=self.device)))
