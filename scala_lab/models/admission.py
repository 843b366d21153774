"""The test that every model passes before it is used: does our way of running it give what transformers gives?

A few rows of the data run through a copy of the model in float64 with randomly perturbed weights, twice: by the stock
model, each row alone and unpadded, and by our path (word embeddings looked up outside, rows padded into one batch, the
last layer narrowed, our attention and dropout code). Logits and the gradients of all parameters must agree to 1e-9.
Where they do not, slower ways are tried, down to the stock model on unpadded batches of equal length; a model on which
none is exact is refused. Perturbed weights make this a test of the structure: a head that is zero, an output bias of
1000 or a tiny initialisation hide nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scala_lab.data.tokens import Padding, TokenSplit, collate
from scala_lab.errors import UserError
from scala_lab.models.encoder import Encoder, find_word_embeddings
from scala_lab.models.fast_layers import drops_out, own_attention, use_own_attention
from scala_lab.models.loading import to_float64
from scala_lab.models.narrowing import Narrowing, prove_narrowing

TOLERANCE = 1e-9
"""Largest relative difference between our path and the stock model, in float64."""

ROWS = 5
"""How many rows are tried."""

MOST_TOKENS, MOST_TOKENS_FORWARD = 24, 256
"""Longer rows lose their middle, so that the test stays quick; less so where only logits are compared."""

RANDOM_TRIES = 8
"""How often a model that draws random numbers in training mode is asked again whether they change anything."""

NEGLIGIBLE = 1e-4
"""A tensor's gradient is compared relative to its own largest entry, or to this share of the model's largest where
its own is smaller: below it, a gradient that is zero in exact arithmetic (a key's bias) is rounding."""

Use = Literal["train", "predict"]


@dataclass(frozen=True)
class Admission:
    """How a model is run, and the evidence that this is exact.

    Attributes:
        padding: How rows of different lengths share a batch.
        narrowing: What the last layer computes for the first token alone.
        fast_attention: Whether our attention takes the place of torch's.
        stochastic: Whether two passes in training mode may differ, by dropout or otherwise.
        logit_difference: Largest relative difference of logits to the stock model on each row alone.
        gradient_difference: The same of the parameters' gradients; None where only predictions were asked for.
        note: Why a slower way than usual is taken; '' where none is.
    """

    padding: Padding
    narrowing: Narrowing
    fast_attention: bool
    stochastic: bool
    logit_difference: float
    gradient_difference: float | None
    note: str = ""

    def encoder(self, model: nn.Module, autocast: torch.dtype | None = None) -> Encoder:
        """The model, run this way."""
        if self.fast_attention:
            use_own_attention(model)
        return Encoder(model, narrowing=self.narrowing, stochastic=self.stochastic, autocast=autocast)

    def record(self) -> dict[str, Any]:
        """The evidence as run.json keeps it."""
        return {
            "rows": "each alone and unpadded by the stock model, in float64 with perturbed weights",
            "tolerance": TOLERANCE,
            "logit_difference": self.logit_difference,
            "gradient_difference": self.gradient_difference,
            "padding": asdict(self.padding),
            "first_token_only": [call.module for call in self.narrowing.calls],
            "fast_attention": self.fast_attention,
            "note": self.note,
        }


def admit(model: nn.Module, split: TokenSplit, pad_token: int, name: str, use: Use = "train") -> Admission:
    """Find the fastest way to run a model that is exact, or refuse it.

    Args:
        model: A classifier as loaded; it is not changed.
        split: Rows of the task.
        pad_token: Id that rows are padded with.
        name: What to call the model in errors.
        use: train asks for logits and gradients from word embeddings, predict only for logits from token ids.

    Raises:
        UserError: No way is exact; the sentence says what differs.
    """
    rows, long_rows = _few_rows(split, MOST_TOKENS), _few_rows(split, MOST_TOKENS_FORWARD)
    ids = torch.as_tensor(np.append(long_rows.ids, pad_token))
    with Float64Islands(), _seeded():
        try:
            own = _Trial(_float64_copy(model, ids), long_rows, "predict")
            perturbed = _Trial(random_twin(model, ids), rows, use)
        except UserError as error:
            raise UserError(f"{name} is refused: {error}") from None
        except Exception as error:  # whatever a model's own code raises
            raise UserError(
                f"{name}: transformers itself cannot run it on a row of this task: {first_line(error)}"
            ) from error
        stochastic = drops_out(model) or any(_is_stochastic(trial.twin, rows, use) for trial in (own, perturbed))
        complaints: list[str] = []
        for side in ("right", "left", "none"):
            padding = Padding(pad_token, side)
            for fast in (True, False):
                found = perturbed.run(padding, fast)
                if isinstance(found, Admission):
                    with_own_weights = own.run(padding, fast, found.narrowing)
                    if isinstance(with_own_weights, Admission):
                        return replace(found, stochastic=stochastic, note="; ".join(complaints))
                    found = with_own_weights
                if found is not None:
                    complaints.append(f"{_WAYS[side]}{', by our fast layers' if fast else ''}, {found}")
    raise UserError(f"{name} is refused, because it does not run as transformers runs it: {complaints[-1]}")


_WAYS = {"right": "padded on the right", "left": "padded on the left", "none": "unpadded"}


def random_twin(model: nn.Module, ids: Tensor | None = None) -> nn.Module:
    """A copy of a model in float64 and eval mode whose weights are perturbed so that every part of it acts.

    Args:
        model: It is not changed.
        ids: Tokens of the rows that will be run: of a plain table of word embeddings only their rows are copied, since
            the whole one would be most of the work; None copies all.
    """
    twin = _float64_copy(model, ids)
    _perturb(twin)
    return twin


def _float64_copy(model: nn.Module, ids: Tensor | None) -> nn.Module:
    table = None if ids is None else _plain_table(model)
    memo: dict[int, Any] = {}
    if table is not None and ids is not None:
        used = ids.unique().to(table.weight.device)
        memo[id(table.weight)] = nn.Parameter(table.weight.detach()[used])
    twin = to_float64(copy.deepcopy(model, memo)).eval()
    if table is not None:
        _UsedRows.take_place_of(twin.get_input_embeddings(), used)  # type: ignore[operator]
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None
    return twin


def _perturb(twin: nn.Module) -> None:
    """Add noise of about 1/sqrt(inputs) to all weights and draw biases anew.

    So a head of zeros or a tiny initialisation has derivatives everywhere, and no large offset hides a difference.
    """
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64).to(parameter.device)
            if parameter.ndim > 1:
                parameter.add_(noise, alpha=0.5 * (parameter.shape[0] / parameter.numel()) ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.add_(noise, alpha=0.1)


class _UsedRows(nn.Embedding):
    """A table of word embeddings that holds the rows of some ids only; others are answered with a neighbour's."""

    used: Tensor

    @classmethod
    def take_place_of(cls, table: Any, used: Tensor) -> None:
        """Turn a plain table whose weight has been cut down into one of these."""
        table.__class__ = cls
        table.used = used
        padding = table.padding_idx
        table.padding_idx = (
            int((used < padding).sum()) if padding is not None and bool((used == padding).any()) else None
        )

    def forward(self, input: Tensor) -> Tensor:
        """Look ids up."""
        places = torch.searchsorted(self.used, input.contiguous()).clamp_max(len(self.used) - 1)
        return nn.functional.embedding(places, self.weight, self.padding_idx)


def _plain_table(model: nn.Module) -> nn.Embedding | None:
    table = find_word_embeddings(model)
    if type(table) is not nn.Embedding or table._forward_hooks:
        return None
    users = [name for name, value in model.named_parameters(remove_duplicate=False) if value is table.weight]
    return table if len(users) == 1 else None


@dataclass(frozen=True)
class _Outcome:
    """Logits, one row per sample, and the gradient of each parameter for random weights on them."""

    logits: Tensor
    gradients: Mapping[str, Tensor | None] | None


class _Trial:
    """A float64 model with what its stock forward pass gives on each row alone, to compare other ways with."""

    def __init__(self, twin: nn.Module, rows: TokenSplit, use: Use) -> None:
        self.twin, self.rows, self.use = twin, rows, use
        self.device = next(twin.parameters()).device
        before = self._longest()
        if not torch.equal(self._longest(), before):
            raise UserError("it gives two answers to one row, although in eval mode")
        self.stock = self._stock()
        if not torch.allclose(self._longest(), before, rtol=TOLERANCE, atol=TOLERANCE):
            raise UserError("its answer to a row depends on the rows that it was given before")

    def run(self, padding: Padding, fast: bool, narrowing: Narrowing | None = None) -> Admission | str | None:
        """Run the rows our way: the way if it is exact, else what differs; None where the fast way is the slow one.

        Args:
            padding: How rows share a batch.
            fast: Whether to use our attention and a narrowed last layer.
            narrowing: What is narrowed; default whatever can be proved.
        """
        batches = [(group, _to(collate(self.rows, group, padding), self.device)) for group in self._groups(padding)]
        with own_attention(self.twin) if fast else nullcontext(False) as own:
            try:
                if narrowing is None:
                    narrowing = _proved(self.twin, batches) if fast else Narrowing()
                    if fast and not own and narrowing.norm is None:
                        return None
                found = self._ours(Encoder(self.twin, narrowing=narrowing), batches)
            except UserError as error:
                return str(error)
            except Exception as error:  # noqa: BLE001 - whatever a model's own code raises
                return f"it fails ({first_line(error)})"
        differences = _differences(found, self.stock)
        return differences if isinstance(differences, str) else Admission(padding, narrowing, own, True, *differences)

    def _longest(self) -> Tensor:
        """Logits of the longest row."""
        row = np.array([int(np.argmax(self.rows.lengths))])
        with torch.no_grad():
            return self.twin(**_to(collate(self.rows, row, Padding()), self.device)).logits

    def _stock(self) -> _Outcome:
        """Each row alone by the model's own forward pass."""
        logits, train = [], self.use == "train"
        with torch.set_grad_enabled(train):
            for row in range(len(self.rows)):
                inputs = _to(collate(self.rows, np.array([row]), Padding()), self.device)
                logits.append(self.twin(**inputs).logits)
                if train:
                    (logits[-1] * self._weights(logits[-1])[row]).sum().backward()
        return _Outcome(torch.cat(logits).detach(), _take_gradients(self.twin) if train else None)

    def _ours(self, encoder: Encoder, batches: Sequence[tuple[np.ndarray, dict[str, Tensor]]]) -> _Outcome:
        """The rows by our path."""
        parts, train = [], self.use == "train"
        if train:
            for parameter in self.twin.parameters():
                parameter.grad = torch.zeros_like(parameter)  # as in training, where gradients are added up in place
        with torch.set_grad_enabled(train):
            for group, inputs in batches:
                logits = encoder.logits(encoder.embed(inputs), inputs) if train else encoder.predict(inputs)
                if train:
                    (logits * self._weights(logits)[group]).sum().backward()
                parts.append(logits.detach())
        together = parts[0].new_empty((len(self.rows), *parts[0].shape[1:]))
        for (group, _), part in zip(batches, parts, strict=True):
            together[torch.as_tensor(group)] = part
        return _Outcome(together, _take_gradients(self.twin) if train else None)

    def _groups(self, padding: Padding) -> list[np.ndarray]:
        """All rows in one batch, or those of equal length where nothing may be padded."""
        places = np.arange(len(self.rows))
        if padding.side != "none":
            return [places]
        return [places[self.rows.lengths == length] for length in np.unique(self.rows.lengths)]

    def _weights(self, logits: Tensor) -> Tensor:
        """Random numbers that logits are summed with, the same for all ways."""
        shape = (len(self.rows), *logits.shape[1:])
        return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(logits)


def _differences(found: _Outcome, expected: _Outcome) -> tuple[float, float | None] | str:
    """The largest relative differences of logits and of gradients, or what differs by more than the tolerance."""
    if found.logits.shape != expected.logits.shape:
        return f"logits have shape {tuple(found.logits.shape)}, not {tuple(expected.logits.shape)}"
    scale = max(float(expected.logits.abs().max()), torch.finfo(torch.float32).eps)
    by_logits = float((found.logits - expected.logits).abs().max()) / scale
    if not by_logits <= TOLERANCE:
        return f"logits differ by {by_logits:.1e}"
    if found.gradients is None or expected.gradients is None:
        return by_logits, None
    largest = max(float(value.abs().max()) for value in expected.gradients.values() if value is not None)
    worst, where = 0.0, ""
    for name, theirs in expected.gradients.items():
        ours = found.gradients[name]
        if theirs is None or ours is None:
            difference = 0.0 if ours is None or not ours.any() else float("inf")
        else:
            scale = max(float(theirs.abs().max()), NEGLIGIBLE * largest)
            difference = float((ours - theirs).abs().max()) / scale
        if not difference <= worst:
            worst, where = difference, name
    return (by_logits, worst) if worst <= TOLERANCE else f"the gradient of {where} differs by {worst:.1e}"


def _proved(twin: nn.Module, batches: Sequence[tuple[np.ndarray, dict[str, Tensor]]]) -> Narrowing:
    """What can be narrowed, by the batch that has the most rows of several tokens."""
    longer = [inputs for _, inputs in batches if inputs["input_ids"].shape[1] > 1]
    if not longer:
        return Narrowing()
    inputs = max(longer, key=lambda inputs: inputs["input_ids"].shape[0])
    return prove_narrowing(twin, lambda: twin(**inputs).logits)


def _is_stochastic(twin: nn.Module, rows: TokenSplit, use: Use) -> bool:
    """Whether two passes in training mode differ, in their logits or gradients.

    A model that draws random numbers may use them rarely (a mixture of experts that samples among nearly equal ones),
    so it is asked more often.
    """
    device = next(twin.parameters()).device
    every = [_to(collate(rows, np.array([row]), Padding()), device) for row in range(len(rows))]
    longest = every[int(np.argmax(rows.lengths))]

    def answer() -> list[Tensor]:
        with torch.set_grad_enabled(use == "train"):
            logits = twin(**longest).logits
        if use != "train":
            return [logits]
        slopes = torch.autograd.grad(logits.square().sum(), list(twin.parameters()), allow_unused=True)
        return [logits, *(slope for slope in slopes if slope is not None)]

    def logits_of_all() -> Tensor:
        with torch.no_grad():
            return torch.cat([twin(**inputs).logits for inputs in every])

    twin.train()
    try:
        before, (first, second) = torch.get_rng_state(), (answer(), answer())
        if len(first) != len(second) or not all(map(torch.equal, first, second)):
            return True
        if torch.equal(torch.get_rng_state(), before):
            return False
        reference = logits_of_all()
        return any(not torch.equal(logits_of_all(), reference) for _ in range(RANDOM_TRIES))
    finally:
        twin.eval()


def _few_rows(split: TokenSplit, most: int) -> TokenSplit:
    """Rows of several lengths: real ones from the shortest to the longest, without their middle where they are long.

    Where the data has one length only, further rows are cut shorter, so that padding is tried all the same.
    """
    order = np.argsort(split.lengths, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, ROWS).astype(int))]
    lengths = [min(int(length), most) for length in split.lengths[chosen]]
    if len(set(lengths)) < 3 and max(lengths) > 3:
        longest = int(order[-1])
        for shorter in (max(lengths) // 2 + 1, max(lengths) // 4 + 1):
            chosen, lengths = np.append(chosen, longest), [*lengths, shorter]
    keep = [_without_middle(int(split.lengths[row]), length) for row, length in zip(chosen, lengths, strict=True)]
    source = np.concatenate([split.offsets[row] + places for row, places in zip(chosen, keep, strict=True)])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    types = None if split.type_ids is None else split.type_ids[source]
    return TokenSplit(split.ids[source], offsets, types, np.arange(len(chosen)))


def _without_middle(length: int, wanted: int) -> np.ndarray:
    head = (wanted + 1) // 2
    return np.concatenate([np.arange(head), np.arange(length - (wanted - head), length)])


def _take_gradients(twin: nn.Module) -> dict[str, Tensor | None]:
    found = {name: parameter.grad for name, parameter in twin.named_parameters()}
    twin.zero_grad(set_to_none=True)
    return found


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in batch.items() if name != "labels"}


def first_line(error: Exception) -> str:
    """The kind of an exception and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@contextmanager
def _seeded() -> Iterator[None]:
    """Leave the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Float64Islands(TorchFunctionMode):
    """Computes in float64 what models compute in float32 whatever their own precision (RMSNorm, softmax, rotations).

    Otherwise their rounding, which depends on the shapes of a batch, would be all that the comparison sees.
    """

    _LOW = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        named = dict(kwargs or {})
        if function is Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if isinstance(arg, torch.dtype) and arg in self._LOW else arg for arg in args)
        if named.get("dtype") in self._LOW:
            named["dtype"] = torch.float64
        return function(*args, **named)
