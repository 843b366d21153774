"""Compare every model with stock transformers before it is used, and find the fastest exact settings to run it with.

A few rows of the data run through a float64 copy of the model with randomly perturbed weights, twice: by the stock
model, each row alone and unpadded, and by our encoder (word embeddings looked up outside, rows padded into one batch,
the last layer narrowed, our attention and dropout code). Logits and the gradients of all parameters must agree to 1e-9.
Where they do not, slower settings are tried, down to unpadded batches of equal length; a model for which none is exact
is refused. With perturbed weights, a head of zeros, an output bias of 1000 or a tiny initialisation hide nothing.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scala_lab.data.tokens import Padding, TokenSplit, collate
from scala_lab.errors import UserError
from scala_lab.models.encoder import Encoder, plain_table
from scala_lab.models.fast_layers import Narrowing, drops_out, own_attention, prove_narrowing, use_own_attention
from scala_lab.models.loading import to_float64

TOLERANCE = 1e-9  # largest relative difference between our encoder and the stock model, in float64

ROWS, MAX_TOKENS, MAX_TOKENS_FORWARD = 5, 24, 256
"""Rows that are compared; longer ones lose their middle, which saves time, later where only logits are compared."""

RANDOM_TRIES = 8  # further passes in training mode in which a model's random numbers may change its logits

NEGLIGIBLE = 1e-4
"""A tensor's gradient is compared relative to its own largest entry, or to this share of the model's largest where
its own is smaller: below it, a gradient that is zero in exact arithmetic (a key's bias) is rounding."""

Use = Literal["train", "predict"]

_Batch = tuple[np.ndarray, dict[str, Tensor]]  # indices of rows, and the model's inputs made of them
_Outcome = tuple[Tensor, dict[str, Tensor | None] | None]  # logits of all rows, and gradients by parameter


@dataclass(frozen=True)
class Admission:
    """The settings that a model is run with, and the evidence that they are exact."""

    padding: Padding  # how rows of different lengths share a batch
    narrowing: Narrowing  # what the last layer computes for the first token alone
    fast_attention: bool  # whether our attention replaces torch's
    stochastic: bool  # whether two passes in training mode may differ, by dropout or otherwise
    logit_difference: float  # the largest relative one, to the stock model on each row alone
    gradient_difference: float | None  # the same of the parameters' gradients; None where the model only predicts
    note: str = ""  # why faster settings are not used

    def encoder(self, model: nn.Module, autocast: torch.dtype | None = None) -> Encoder:
        """Wrap the model in an encoder with these settings."""
        if self.fast_attention:
            use_own_attention(model)
        return Encoder(model, narrowing=self.narrowing, stochastic=self.stochastic, autocast=autocast)

    def record(self) -> dict[str, Any]:
        """Return the evidence as run.json stores it."""
        return {
            "rows": "each alone and unpadded by the stock model, in float64 with perturbed weights",
            "tolerance": TOLERANCE,
            "logit_difference": self.logit_difference,
            "gradient_difference": self.gradient_difference,
            "padding": asdict(self.padding),
            "first_token_only": [module for (module, _), _ in self.narrowing],
            "fast_attention": self.fast_attention,
            "note": self.note,
        }


def admit(model: nn.Module, split: TokenSplit, pad_token: int, name: str, use: Use = "train") -> Admission:
    """Find the fastest exact settings for a model on a task's rows, or refuse it (as `name`) with what differs.

    To train, logits and gradients from word embeddings are compared; to predict, logits from token ids.
    """
    rows, long_rows = _few_rows(split, MAX_TOKENS), _few_rows(split, MAX_TOKENS_FORWARD)
    ids = torch.as_tensor(np.append(long_rows.ids, pad_token))
    with Float64Islands(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            original = _Trial(_float64_copy(model, ids), long_rows, "predict")
            perturbed = _Trial(random_twin(model, ids), rows, use)
        except UserError as error:
            raise UserError(f"{name} is refused: {error}") from None
        except Exception as error:  # whatever a model's own code raises
            raise UserError(
                f"{name}: transformers itself cannot run it on a row of this task: {first_line(error)}"
            ) from error
        stochastic = drops_out(model) or any(_is_stochastic(trial.twin, rows, use) for trial in (original, perturbed))
        complaints: list[str] = []
        paddings = Padding(pad_token, "right"), Padding(pad_token, "left"), Padding(pad_token, "none")
        for padding, fast in itertools.product(paddings, (True, False)):
            try:
                admission = perturbed.run(padding, fast)
                if admission is None:
                    continue
                original.run(padding, fast, admission.narrowing)
                return replace(admission, stochastic=stochastic, note="; ".join(complaints))
            except UserError as error:
                padded = "unpadded" if padding.side == "none" else f"padded on the {padding.side}"
                complaints.append(f"{padded}{', by our fast layers' if fast else ''}, {error}")
    raise UserError(f"{name} is refused, because it does not run as transformers runs it: {complaints[-1]}")


def random_twin(model: nn.Module, ids: Tensor | None = None) -> nn.Module:
    """Copy a model into float64 and eval mode, with weights perturbed so that it has derivatives everywhere.

    Weights get noise of about 1/sqrt(inputs) and biases are drawn anew. With `ids`, the tokens of the rows that will be
    run, a plain word embedding table is cut to their rows: copying all of it would take most of the time.
    """
    twin = _float64_copy(model, ids)
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
    return twin


class _Trial:
    """A float64 model and what its stock forward pass gives on each row alone, to compare settings with."""

    def __init__(self, twin: nn.Module, rows: TokenSplit, use: Use) -> None:
        self.twin, self.rows, self.use = twin, rows, use
        alone = _batches(twin, rows, [np.array([row]) for row in range(len(rows))], Padding())
        longest = alone[int(np.argmax(rows.lengths))][1]
        with torch.no_grad():
            before, again = twin(**longest).logits, twin(**longest).logits
        if not torch.equal(again, before):
            raise UserError("it gives two answers to one row, although in eval mode")
        self.stock = self._outcome(lambda inputs: twin(**inputs).logits, alone)
        with torch.no_grad():
            after = twin(**longest).logits
        if not torch.allclose(after, before, rtol=TOLERANCE, atol=TOLERANCE):
            raise UserError("its answer to a row depends on the rows that it was given before")

    def run(self, padding: Padding, fast: bool, narrowing: Narrowing | None = None) -> Admission | None:
        """Run the rows by our encoder and return its settings; raise UserError if the result is not the stock model's.

        `fast` uses our attention and the narrowing, default what can be proved; None where nothing fast applies.
        """
        indices, lengths = np.arange(len(self.rows)), self.rows.lengths
        equal_lengths = [indices[lengths == length] for length in np.unique(lengths)]
        batches = _batches(self.twin, self.rows, equal_lengths if padding.side == "none" else [indices], padding)
        with own_attention(self.twin) if fast else nullcontext(False) as fast_attention:
            try:
                if narrowing is None and fast:  # by the largest batch whose rows have several tokens
                    _, inputs = max(batches, key=lambda batch: (batch[1]["input_ids"].shape[1] > 1, len(batch[0])))
                    narrowing = prove_narrowing(self.twin, lambda: self.twin(**inputs).logits)
                    if not fast_attention and not narrowing:
                        return None
                encoder = Encoder(self.twin, narrowing=narrowing or ())
                if self.use == "train":
                    for parameter in self.twin.parameters():
                        parameter.grad = torch.zeros_like(parameter)  # as in training, which accumulates in place
                    outcome = self._outcome(lambda inputs: encoder.logits(encoder.embed(inputs), inputs), batches)
                else:
                    outcome = self._outcome(encoder.predict, batches)
            except UserError:
                raise
            except Exception as error:  # whatever a model's own code raises
                raise UserError(f"it fails ({first_line(error)})") from error
        return Admission(padding, encoder.narrowing, fast_attention, True, *_differences(outcome, self.stock))

    def _outcome(self, forward: Callable[[dict[str, Tensor]], Tensor], batches: Sequence[_Batch]) -> _Outcome:
        """Return the logits of all rows, and in training the gradient of a randomly weighted sum of them."""
        parts, train = [], self.use == "train"
        with torch.set_grad_enabled(train):
            for rows, inputs in batches:
                logits = forward(inputs)
                if train:
                    rng = torch.Generator().manual_seed(1)  # the same weights for all settings
                    weights = torch.randn(len(self.rows), *logits.shape[1:], generator=rng, dtype=torch.float64)
                    (logits * weights.to(logits)[rows]).sum().backward()
                parts.append(logits.detach())
        all_logits = parts[0].new_empty((len(self.rows), *parts[0].shape[1:]))
        for (rows, _), part in zip(batches, parts, strict=True):
            all_logits[torch.as_tensor(rows)] = part
        if not train:
            return all_logits, None
        gradients = {name: parameter.grad for name, parameter in self.twin.named_parameters()}
        self.twin.zero_grad(set_to_none=True)
        return all_logits, gradients


def _differences(ours: _Outcome, stock: _Outcome) -> tuple[float, float | None]:
    """Return the largest relative differences of logits and of gradients; raise UserError above the tolerance."""
    (logits, gradients), (stock_logits, stock_gradients) = ours, stock
    if logits.shape != stock_logits.shape:
        raise UserError(f"logits have shape {tuple(logits.shape)}, not {tuple(stock_logits.shape)}")
    scale = max(float(stock_logits.abs().max()), torch.finfo(torch.float32).eps)
    logit_difference = float((logits - stock_logits).abs().max()) / scale
    if not logit_difference <= TOLERANCE:
        raise UserError(f"logits differ by {logit_difference:.1e}")
    if gradients is None or stock_gradients is None:
        return logit_difference, None
    largest = max(float(gradient.abs().max()) for gradient in stock_gradients.values() if gradient is not None)
    differences = {
        name: _gradient_difference(gradients[name], expected, NEGLIGIBLE * largest)
        for name, expected in stock_gradients.items()
    }
    worst = max(differences, key=differences.__getitem__)
    if not differences[worst] <= TOLERANCE:
        raise UserError(f"the gradient of {worst} differs by {differences[worst]:.1e}")
    return logit_difference, differences[worst]


def _gradient_difference(ours: Tensor | None, stock: Tensor | None, negligible: float) -> float:
    """Return the largest relative difference, infinite where one is not finite; None is a gradient of zeros."""
    if ours is None or stock is None:
        rest = stock if ours is None else ours
        return 0.0 if rest is None or not rest.any() else float("inf")
    difference = float((ours - stock).abs().max()) / max(float(stock.abs().max()), negligible)
    return difference if difference == difference else float("inf")


def _is_stochastic(twin: nn.Module, rows: TokenSplit, use: Use) -> bool:
    """Whether two passes in training mode differ, in their logits or gradients.

    A model that draws random numbers may use them rarely (a router that samples among experts), so it runs more often.
    """
    batches = _batches(twin, rows, [np.array([row]) for row in range(len(rows))], Padding())
    longest = batches[int(np.argmax(rows.lengths))][1]

    def logits_and_gradients() -> list[Tensor]:
        with torch.set_grad_enabled(use == "train"):
            logits = twin(**longest).logits
        if use != "train":
            return [logits]
        gradients = torch.autograd.grad(logits.square().sum(), list(twin.parameters()), allow_unused=True)
        return [logits, *(gradient for gradient in gradients if gradient is not None)]

    def logits_of_all_rows() -> Tensor:
        with torch.no_grad():
            return torch.cat([twin(**inputs).logits for _, inputs in batches])

    twin.train()
    try:
        before, (first, second) = torch.get_rng_state(), (logits_and_gradients(), logits_and_gradients())
        if len(first) != len(second) or not all(map(torch.equal, first, second)):
            return True
        if torch.equal(torch.get_rng_state(), before):
            return False
        reference = logits_of_all_rows()
        return any(not torch.equal(logits_of_all_rows(), reference) for _ in range(RANDOM_TRIES))
    finally:
        twin.eval()


def _few_rows(split: TokenSplit, max_tokens: int) -> TokenSplit:
    """Pick rows from the shortest to the longest, and cut the middle out of those that are too long.

    Where the data has one length only, further rows are cut shorter, so that padding is tried all the same.
    """
    order = np.argsort(split.lengths, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, ROWS).astype(int))]
    lengths = [min(int(length), max_tokens) for length in split.lengths[chosen]]
    if len(set(lengths)) < 3 and max(lengths) > 3:
        chosen = np.append(chosen, [order[-1]] * 2)
        lengths += [max(lengths) // 2 + 1, max(lengths) // 4 + 1]
    parts = []
    for row, length in zip(chosen, lengths, strict=True):
        tokens, tail = np.arange(split.offsets[row], split.offsets[row + 1]), length // 2
        parts.append(np.delete(tokens, slice(length - tail, len(tokens) - tail)))
    source = np.concatenate(parts)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    types = None if split.type_ids is None else split.type_ids[source]
    return TokenSplit(split.ids[source], offsets, types, np.arange(len(chosen)))


def _batches(twin: nn.Module, split: TokenSplit, groups: Sequence[np.ndarray], padding: Padding) -> list[_Batch]:
    """Collate a batch of each group of rows, on the model's device and without labels."""
    batches = [(rows, collate(split, rows, padding, next(twin.parameters()).device)) for rows in groups]
    for _, batch in batches:
        del batch["labels"]
    return batches


def _float64_copy(model: nn.Module, ids: Tensor | None) -> nn.Module:
    table: Any = plain_table(model)
    users = [value for _, value in model.named_parameters(remove_duplicate=False) if table and value is table.weight]
    memo: dict[int, Any] = {}
    cut = ids is not None and len(users) == 1  # not where another layer shares the weight
    if cut:
        used = ids.unique().to(table.weight.device)  # type: ignore[union-attr]
        memo[id(table.weight)] = nn.Parameter(table.weight.detach()[used])
    twin = to_float64(copy.deepcopy(model, memo)).eval()
    if cut:
        small: Any = twin.get_input_embeddings()  # type: ignore[operator]
        padding = table.padding_idx
        small.__class__, small.used = _UsedRows, used
        small.padding_idx = int((used < padding).sum()) if padding is not None and padding in used else None
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None
    return twin


class _UsedRows(nn.Embedding):
    """A word embedding table with the rows of the sorted ids `used` only; another id gets the row of a neighbour."""

    used: Tensor

    def forward(self, input: Tensor) -> Tensor:
        rows = torch.searchsorted(self.used, input.contiguous()).clamp_max(len(self.used) - 1)
        return nn.functional.embedding(rows, self.weight, self.padding_idx)


def first_line(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class Float64Islands(TorchFunctionMode):
    """Replace float32 inside a float64 model (RMSNorm, softmax, rotations), whose rounding depends on the batch."""

    _LOW = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if function is Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if isinstance(arg, torch.dtype) and arg in self._LOW else arg for arg in args)
        if named.get("dtype") in self._LOW:
            named["dtype"] = torch.float64
        return function(*args, **named)
