"""The Hessian of the mean task loss over a fixed set of samples, as an operator that multiplies vectors.

    H = (1/N) * sum over samples of the second derivative of the UNregularised loss, model in eval mode.

Batches are cut into shards with little padding, where the model allows it. Each contributes the sum over its samples,
divided by the total N. Where memory allows, the graph of a shard's gradient is retained and a product is one backward
pass through it; the other shards are streamed, with a new gradient graph for each product, so that memory does not grow
with the number of samples.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from scala_lab.batches import cheapest_cuts, cut, deal
from scala_lab.curvature.autograd import QuickLayers, added_to
from scala_lab.curvature.loss import (
    ParameterSpace,
    chosen_parameters,
    is_regression,
    on_device,
    stock_logits,
    stock_product,
    with_pad_token,
    without_labels,
    word_table,
)
from scala_lab.divergence import task_loss
from scala_lab.errors import UserError
from scala_lab.models.admission import TOLERANCE, Float64Islands, first_line, random_twin
from scala_lab.models.encoder import replaced_embeddings
from scala_lab.models.fast_layers import Narrowing, narrowed, prove_narrowing

SHARD_COST = 20
"""Cost of a shard beside its tokens, in tokens: it writes and adds up a gradient of the model's size. Measured on a
3-layer encoder of width 384, a shard per core: products are within 4% of the best from 10 to 40."""
MAX_SHARD_TOKENS = 1024
"""Maximum tokens of a shard of several rows, on the CPU. Matrix products are at full speed from some 200 on, and
beside the retained graphs a worker has that of one shard in memory for each core."""
PROBE_ROWS = 4  # rows on which shortcuts are proved
MAX_LANES = 8  # each lane may have a shard's graph in memory at a time
DEFAULT_BUDGET = 2 << 30
"""Bytes of retained graphs: enough for some hundred samples of a small encoder, little on any machine."""
MAX_RETAINED_SAMPLES = 1024  # approximate maximum of samples per worker whose graphs are retained, whatever the budget
SOLVER_VECTORS = 32
"""Vectors of a solver that the budget reserves memory for. They grow with the vocabulary of the samples: if graphs took
the whole budget, memory would grow with the number of samples after all."""


@dataclass(frozen=True)
class Shortcuts:
    """What an operator computes in another way than the stock model, because it was shown to change nothing."""

    cut_padding: bool = False  # batches are cut into shards with little padding
    used_rows: bool = False  # of the word-embedding table only the rows that occur are differentiated by
    fast_layers: bool = False  # linear layers, GELU and LayerNorm have our own derivative rules
    narrowing: Narrowing = ()  # what the last layer computes for the first token alone
    side_by_side: bool = True  # shards run at once on the cores


@dataclass
class _Shard:
    """Some samples, and the graph of their gradient if that is retained.

    Of a graph only the outputs' edges are stored, not the gradient's values, which are as large as the model.
    """

    batch: dict[str, Tensor]
    graph: list[GradientEdge | None] | None = None

    @property
    def cost(self) -> int:
        """Tokens, padding included; a streamed shard costs about twice a retained one."""
        width = max((value.shape[1] for value in without_labels(self.batch).values() if value.ndim > 1), default=1)
        return len(self.batch["labels"]) * width * (1 if self.graph is not None else 2)


def _edges(gradients: Sequence[Tensor | None]) -> list[GradientEdge | None]:
    """Return the edge at which a product enters the graph of each gradient; None without a second derivative."""
    return [None if part is None or part.grad_fn is None else get_gradient_edge(part) for part in gradients]


class HessianOperator:
    """Exact, sample-weighted Hessian of a classifier's mean loss.

    Args:
        model: A transformers model for sequence classification, or any module that takes the batches' entries
            and returns an object with `logits`. Every pass runs in eval mode, with attention by the kernel that has a
            second derivative; the model itself does not change.
        batches: Dicts as the model takes them, `labels` included; of any size, also unequal.
        parameters: Shell patterns of parameter names that restrict H to a block; default all that are trainable.
        budget: Bytes for a solver's vectors first and retained graphs (of at most some 1,024 samples) with what is
            left; 0 streams every batch.
        group: Process group; each worker brings its own batches, a product is summed by one all-reduce.
        on_product: Called after every product, for progress bars.
        shortcuts: What need not be computed as the stock model does; default the result of `proved_shortcuts`.
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
        shortcuts: Shortcuts | None = None,
    ) -> None:
        self.group, self.on_product = group, on_product
        self.device = next(model.parameters()).device
        self.products = 0  # so far
        self._forward_lock = threading.Lock()
        whole = on_device(batches, self.device)
        if not all("labels" in batch for batch in whole):
            raise UserError("every batch needs labels: the Hessian is that of the task's loss")
        self.model = model = with_pad_token(model, whole)
        labels = [batch["labels"] for batch in whole]
        self._regression = is_regression(model, labels)
        self.samples = round(self._sum(sum(map(len, labels))))  # N, of all workers
        if self.samples == 0:
            raise UserError("a Hessian needs at least one sample")
        if shortcuts is None:
            shortcuts = proved_shortcuts(model, probe(whole)) if whole else Shortcuts(used_rows=True)
        self._shortcuts = shortcuts
        table = word_table(model) if self._sum(not shortcuts.used_rows) == 0 else None  # alike on all workers
        used_ids = torch.empty(0) if table is None else self._used_ids(whole)
        self.space = ParameterSpace(chosen_parameters(model, parameters), table, used_ids)
        self._leaves: list[Tensor] = list(self.space.parameters.values())  # to differentiate by
        self._rows, self._padding_index = None, None  # of the table: a leaf with its used rows
        if self.space.table_name is not None:
            index = list(self.space.parameters).index(self.space.table_name)
            self._leaves[index] = self._rows = self._leaves[index].detach()[used_ids].requires_grad_()
            padding = model.get_input_embeddings().padding_idx  # type: ignore[operator]
            if padding is not None and bool((used_ids == padding).any()):  # its gradient stays 0
                self._padding_index = int((used_ids < padding).sum())
        if shortcuts.cut_padding:
            max_tokens = MAX_SHARD_TOKENS if self.device.type == "cpu" else None
            whole = [part for batch in whole for part in cut_batch(batch, shard_tokens=max_tokens)]
        self._shards = [_Shard(batch) for batch in whole]
        self._lanes = lane_count(len(whole), self.device) if shortcuts.side_by_side else 1
        self._lane_map = lane_map(self._lanes)
        self._retained_gradient: Tensor | None = self._retain(budget)

    @property
    def shape(self) -> tuple[int, int]:
        """Size of the full matrix."""
        return self.space.size, self.space.size

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of all vectors."""
        return next(iter(self.space.parameters.values())).dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        """Return H v for a full vector over the chosen parameters."""
        if vector.shape != (self.space.size,):
            raise ValueError(f"the operator takes vectors of length {self.space.size}, not shape {tuple(vector.shape)}")
        return self.space.full(self.multiply(self.space.touched(vector.to(self.device, self.dtype))))

    def multiply(self, touched: Tensor) -> Tensor:
        """Return H v for a touched vector: what solvers iterate with."""
        pieces = self.space.pieces(touched)

        def product(shard: _Shard) -> Sequence[Tensor | None]:
            if shard.graph is not None:
                return self._backward(shard.graph, pieces, retain=True)
            return self._backward(_edges(self._gradient_graph(shard)), pieces, retain=False)

        result = self._over_shards(product, self._shards)
        self.products += 1
        if self.on_product is not None:
            self.on_product()
        return result

    def block(self, names: Sequence[str]) -> HessianOperator:
        """Return the diagonal block of H over some of its parameters, as an operator with its own product count.

        It shares the retained graphs, and a product walks only the part of them that lies between these parameters.
        """
        indices = [index for index, name in enumerate(self.space.parameters) if name in names]
        part = copy.copy(self)
        part.products, part._retained_gradient = 0, None
        chosen = {name: value for name, value in self.space.parameters.items() if name in names}
        part.space = ParameterSpace(chosen, self.space.table_name, self.space.used_ids)
        part._leaves = [self._leaves[index] for index in indices]
        part._shards = [
            shard if shard.graph is None else replace(shard, graph=[shard.graph[index] for index in indices])
            for shard in self._shards
        ]
        return part

    def gradient(self) -> Tensor:
        """Return the gradient of the mean loss as a touched vector."""

        def gradient(shard: _Shard) -> Sequence[Tensor | None]:
            return torch.autograd.grad(self._mean_loss(shard), self._leaves, allow_unused=True)

        retained = self._retained_gradient
        shards = self._shards if retained is None else [shard for shard in self._shards if shard.graph is None]
        return self._over_shards(gradient, shards, retained)

    def loss(self) -> float:
        """Return the mean loss."""
        with torch.no_grad():
            return self._sum(sum(float(self._mean_loss(shard)) for shard in self._shards))

    def _mean_loss(self, shard: _Shard) -> Tensor:
        """Return the shard's share of the mean, sum over its samples / N; locked, because hooks belong to the model."""
        inputs = without_labels(shard.batch)
        with self._forward_lock, ExitStack() as stack:
            stack.enter_context(narrowed(self.model, self._shortcuts.narrowing))
            if self._rows is not None and "input_ids" in inputs:
                rows = torch.searchsorted(self.space.used_ids, inputs["input_ids"])
                embeddings = functional.embedding(rows, self._rows, padding_idx=self._padding_index)
                table: Any = self.model.get_input_embeddings()  # type: ignore[operator]
                stack.enter_context(replaced_embeddings(table, inputs["input_ids"], embeddings))
            if self._shortcuts.fast_layers:
                stack.enter_context(QuickLayers(self._leaves))
            logits = stock_logits(self.model, inputs)
        return task_loss(logits, shard.batch["labels"], self._regression).sum() / self.samples

    def _over_shards(
        self,
        parts_of: Callable[[_Shard], Sequence[Tensor | None]],
        shards: Sequence[_Shard],
        initial: Tensor | None = None,
    ) -> Tensor:
        """Sum a function with a part per leaf over shards, plus `initial`, and over workers, as a touched vector."""

        def lane_sum(shards: Sequence[_Shard]) -> Tensor:
            total = self._zeros()
            with added_to(dict(zip(self._leaves, self.space.pieces(total), strict=True))):
                for shard in shards:
                    self._add(total, parts_of(shard))
            return total

        first, *others = self._lane_map(lane_sum, deal(shards, [shard.cost for shard in shards], self._lanes))
        for other in others if initial is None else [*others, initial]:
            first += other
        return self._reduced(first)

    def _zeros(self) -> Tensor:
        return torch.zeros(self.space.touched_size, dtype=self.dtype, device=self.device)

    def _gradient_graph(self, shard: _Shard) -> list[Tensor | None]:
        return list(torch.autograd.grad(self._mean_loss(shard), self._leaves, create_graph=True, allow_unused=True))

    def _backward(
        self, graph: Sequence[GradientEdge | None], pieces: Sequence[Tensor], retain: bool
    ) -> Sequence[Tensor | None]:
        """Return d/dw of <gradient, v> by one pass through the graph of the gradient."""
        pairs = [(edge, piece) for edge, piece in zip(graph, pieces, strict=True) if edge is not None]
        if not pairs:
            return [None] * len(pieces)
        edges, vectors = zip(*pairs, strict=True)
        return torch.autograd.grad(edges, self._leaves, vectors, retain_graph=retain, allow_unused=True)

    def _add(self, touched: Tensor, parts: Sequence[Tensor | None]) -> None:
        for piece, part in zip(self.space.pieces(touched), parts, strict=True):
            if part is not None:
                piece += part

    def _retain(self, budget: int) -> Tensor:
        """Retain graphs of shards spread over all lengths, as long as they fit the budget; return their gradient."""
        total = self._zeros()
        left = budget - SOLVER_VECTORS * self.space.touched_size * self.dtype.itemsize
        stride = math.ceil(sum(len(shard.batch["labels"]) for shard in self._shards) / MAX_RETAINED_SAMPLES) or 1
        for shard in self._shards[::stride] if left > 0 else ():
            gradients = self._gradient_graph(shard)
            left -= graph_bytes(gradient for gradient in gradients if gradient is not None)
            if left < 0:
                break
            shard.graph = _edges(gradients)
            self._add(total, [None if part is None else part.detach() for part in gradients])
        return total

    def _used_ids(self, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """Return the sorted ids of the tokens that any worker's samples use."""
        ids = [batch["input_ids"].flatten() for batch in batches if "input_ids" in batch]
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


def proved_shortcuts(model: nn.Module, probe_batch: Mapping[str, Tensor]) -> Shortcuts:
    """Return the most shortcuts under which a product is that of the stock model to 1e-9.

    A product with a random vector over a few rows is computed on a copy of the model in float64 with perturbed
    weights, by the stock model (the gradient's own derivative, over all parameters) and with the shortcuts. A model
    that is not deterministic is refused: no solver converges on it.
    """
    inputs = without_labels(probe_batch)
    _check_deterministic(model, inputs)
    twin = random_twin(model)
    with Float64Islands():
        size = sum(weight.numel() for weight in twin.parameters())
        vector = torch.rand(size, generator=torch.Generator().manual_seed(2), dtype=torch.float64).sub_(0.5)
        vector = vector.to(next(twin.parameters()).device)
        try:
            expected = stock_product(twin, inputs, probe_batch["labels"], vector)
        except RuntimeError as error:
            raise UserError(f"the model has no second derivative: {first_line(error)}") from error
        narrowing = prove_narrowing(twin, lambda: stock_logits(twin, inputs))
        fast, plain = Shortcuts(True, True, True, narrowing, False), Shortcuts(True, True, side_by_side=False)
        for shortcuts in (fast, replace(fast, cut_padding=False), plain, replace(plain, cut_padding=False)):
            try:
                product = HessianOperator(twin, [probe_batch], budget=0, shortcuts=shortcuts) @ vector
            except (UserError, RuntimeError, IndexError, ValueError):
                continue
            if float((product - expected).abs().max()) <= TOLERANCE * float(expected.abs().max()):
                return replace(shortcuts, side_by_side=True)
    return Shortcuts()


def _check_deterministic(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    try:
        with torch.no_grad():
            first, second = (stock_logits(model, inputs) for _ in range(2))
    except Exception as error:  # whatever a model's own code raises
        raise UserError(f"the model does not run on these batches: {first_line(error)}") from error
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise UserError("the model gives two different answers to one batch, although in eval mode")


def cut_batch(batch: Mapping[str, Tensor], shard_tokens: int | None = None) -> list[dict[str, Tensor]]:
    """Sort a batch's rows by length, cut them where that is cheapest, and drop columns that are padding in a shard.

    Padding is where `attention_mask` is 0, at the end of rows; a batch that is not padded so stays whole. Shards of
    several rows have at most `shard_tokens` tokens, padding included; default any number.
    """
    lengths = _row_lengths(batch)
    if lengths is None:
        return [dict(batch)]
    order = np.argsort(-lengths, kind="stable")
    token_entries = {
        name for name, value in batch.items() if name != "labels" and value.shape[:2] == batch["attention_mask"].shape
    }
    return [
        {n: value[part, : lengths[part[0]]] if n in token_entries else value[part] for n, value in batch.items()}
        for like in np.split(order, cheapest_cuts(lengths[order], SHARD_COST))
        for part in cut(like, len(like) if shard_tokens is None else max(1, shard_tokens // lengths[like[0]]))
    ]


def probe(batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return a few rows of the batch with most padding, else of the widest, from its shortest to its longest."""

    def padding_and_width(batch: Mapping[str, Tensor]) -> tuple[int, int]:
        width = sum(value[0].numel() for value in batch.values() if value.ndim)
        return _numel(batch) - sum(map(_numel, cut_batch(batch))), width

    batch = max(batches, key=padding_and_width)
    lengths = _row_lengths(batch)
    if lengths is None or len(lengths) <= PROBE_ROWS:
        return dict(batch)
    chosen = np.argsort(lengths)[np.linspace(0, len(lengths) - 1, PROBE_ROWS).astype(int)]
    return {name: value[chosen] for name, value in batch.items()}


def _numel(batch: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in batch.values())


def _row_lengths(batch: Mapping[str, Tensor]) -> np.ndarray | None:
    """Tokens of each row before its padding, or None if the batch is not of rows that are padded at their end."""
    mask = batch.get("attention_mask")
    if mask is None or mask.ndim != 2 or any(value.ndim == 0 or len(value) != len(mask) for value in batch.values()):
        return None
    real = mask.bool()
    if not real[:, :1].all() or (real[:, 1:] & ~real[:, :-1]).any():
        return None
    return real.sum(1).cpu().numpy()


def lane_count(shards: int, device: torch.device) -> int:
    """Return how many shards are worth running at once."""
    return max(1, min(torch.get_num_threads(), shards, MAX_LANES)) if device.type == "cpu" else 1


def lane_map(lanes: int) -> Callable[..., Iterable[Any]]:
    """Return `map` over lanes: Python threads, each with its own compute threads; one lane is the caller itself.

    Shards are small: cores that share each operation would wait for one another more than they compute. Which shard
    goes to which lane depends on their sizes alone, and lanes are summed in order, so that results repeat to the bit.
    """
    if lanes == 1:
        return map
    threads = max(1, torch.get_num_threads() // lanes)
    return ThreadPoolExecutor(lanes, initializer=partial(torch.set_num_threads, threads)).map


def graph_bytes(outputs: Iterable[Tensor]) -> int:
    """Return the bytes of all storages that the graph behind some tensors has saved, each once, without leaves.

    >>> import torch
    >>> graph_bytes([torch.ones(10, requires_grad=True).exp()])
    40
    """
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    nodes: set[Any] = set(waiting)
    storages: dict[int, int] = {}
    while waiting:
        node = waiting.pop()
        node_type: Any = type(node)
        for name in _saved_names(node_type):
            saved = getattr(node, name)
            for value in saved if isinstance(saved, tuple | list) else (saved,):
                if isinstance(value, Tensor) and not (value.is_leaf and value.requires_grad):
                    storage = value.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        following = {follower for follower, _ in node.next_functions if follower is not None} - nodes
        nodes |= following
        waiting += following
    return sum(storages.values())


@cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    """Attributes with the saved tensors of a node type; `saved_tensors` is that of functions in Python."""
    return tuple(name for name in dir(node_type) if name.startswith("_saved_") or name == "saved_tensors")
