"""Dropout, attention and the last layer without needless work on CPU.

Dropout: torch draws a random number per entry, which takes more time than a small encoder's attention. Here one number
of 64 bits serves four entries, at a sixth of the cost. A rate is rounded to the nearest 1/65536 and the scale fits the
rounded rate, so the mean stays exact. Masks come from torch's own generator: seeding it fixes them.

Attention: masks are drawn as above, and scale and padding enter with the product of queries and keys. Where the
queries of a sample are one broadcast query, because the last layer is computed for the first token alone, attention is
computed once and broadcast.

Narrowing: classifiers of the BERT family read the first token of the last layer alone. Taking it before the last but
one LayerNorm saves the last feed-forward block for all other tokens, two ninths of all work in an encoder of three
layers; taking it in the query and output projections of the attention before, a further fourteenth.

Whether this holds is proved, not assumed, on a model with random weights in float64: the derivative of the logits by
what would be left out must be exactly zero, entry by entry, on rows of several lengths. Exact zeros come from the
structure of the graph, not from small weights, so the proof holds for all weights. Keys and values are read by the
first token's query, have derivatives, and are never narrowed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # dropout rates that 16 random bits can tell apart
NAME = "scala_lab"  # of this attention among those of transformers

_RATE = re.compile(r"dropout|pdrop|drop_path|layer_?drop|drop_rate")
"""Names of rates in configs: hidden_dropout_prob, attention_dropout, resid_pdrop, encoder_layerdrop."""

_HARMLESS = frozenset({"is_causal", "output_attentions", "output_hidden_states", "return_dict", "use_cache"})
"""Options that do not change what attention computes."""

_also_without_dropout = False
"""Whether our own code also computes attention without dropout, so that it can be compared with torch's."""


def fast_dropout(values: Tensor, rate: float) -> Tensor:
    """Zero entries at random, and scale the others up."""
    dropped = round(rate * LEVELS)
    if not 0 < dropped < LEVELS or not values.is_cpu:
        return nn.functional.dropout(values, rate)
    bits = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    mask = bits.view(torch.int16)[: values.numel()].view(values.shape) >= dropped - LEVELS // 2
    return values * mask.to(values.dtype).mul_(LEVELS / (LEVELS - dropped))


class FastDropout(nn.Dropout):
    """nn.Dropout with fast masks."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero entries at random while training."""
        return fast_dropout(input, self.p) if self.training else input


def use_fast_dropout(model: nn.Module) -> None:
    """Make every plain dropout module of a model draw fast masks."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout


def dropout_rates(config: Any, *, jitter: bool) -> dict[str, float | None]:
    """Return the dropout rates of a model's config (None: another one is used), with `jitter` also those of routers."""
    rates = {}
    for name, value in config.to_dict().items():
        number = isinstance(value, (int, float))
        dropout = _RATE.search(name) and (value is None or (number and not isinstance(value, bool)))
        if dropout or (jitter and number and "jitter" in name):
            rates[name] = value
    return rates


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set the rate of every dropout module; rates that a model reads from its config are set there."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = rate


def drops_out(model: nn.Module) -> bool:
    """Whether a model has dropout, by its modules and the rates in its config."""
    config = getattr(model, "config", None)
    rates = [] if config is None else list(dropout_rates(config, jitter=True).values())
    rates += [module.p for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    return any(rates)


def use_own_attention(model: nn.Module) -> bool:
    """Replace torch's attention in a model that uses it; returns whether it did."""
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface

    if not isinstance(model, PreTrainedModel) or model.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, padding_mask)
    model.set_attn_implementation(NAME)
    return model.config._attn_implementation == NAME


@contextmanager
def own_attention(model: nn.Module) -> Iterator[bool]:
    """Use this attention inside the block, without dropout too; yields whether the model does."""
    global _also_without_dropout
    used = False
    try:
        used = _also_without_dropout = use_own_attention(model)
        yield used
    finally:
        _also_without_dropout = False
        if used:
            model.set_attn_implementation("sdpa")  # type: ignore[operator]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute scaled dot-product attention, by the interface of transformers: (samples, tokens, heads, width), None.

    Queries, keys and values are (samples, heads, tokens, width); the mask is boolean or added to scores, (samples, 1 or
    heads, 1 or tokens, tokens). Anything but plain bidirectional attention is left to torch's kernel.
    """
    tokens, plain = query.shape[2], _is_plain(module, options) and query.shape[1] == key.shape[1]
    if plain and is_broadcast_query(query):
        query, attention_mask = query[:, :, :1], None if attention_mask is None else attention_mask[..., :1, :]
    if plain and query.is_cpu and (dropout or _also_without_dropout):
        output = _with_dropout(query, key, value, attention_mask, dropout, scaling).transpose(1, 2)
    else:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    return output.expand(-1, tokens, -1, -1) if output.shape[1] != tokens else output, None


def padding_mask(*, mask_function: Any, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Make the mask that is added to scores, by the interface of transformers: one row for all queries of a sample."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    plain = mask_function is bidirectional_mask_function and options.get("allow_is_bidirectional_skip")
    if not plain or attention_mask is None or attention_mask.shape[-1] != options["kv_length"]:
        return sdpa_mask(mask_function=mask_function, attention_mask=attention_mask, **options)
    return _additive(attention_mask[:, None, None, :].bool(), options.get("dtype", torch.float32))


def is_broadcast_query(query: Tensor) -> bool:
    """Whether all queries of a sample are one that was broadcast, by the stride in memory."""
    return query.shape[-2] > 1 and query.stride(-2) == 0


def _is_plain(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether a layer needs masked bidirectional attention with dropout and nothing else."""
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return not causal and all(value is None for name, value in options.items() if name not in _HARMLESS)


def _with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rate: float, scaling: float | None
) -> Tensor:
    samples, heads, _, width = query.shape
    if mask is None:
        bias = query.new_zeros(1)
    else:
        mask = _additive(mask, query.dtype) if mask.dtype == torch.bool else mask
        bias = mask.expand(samples, heads, -1, -1).reshape(samples * heads, -1, key.shape[2])
    q, k, v = (part.flatten(0, 1) for part in (query, key, value))
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=width**-0.5 if scaling is None else scaling)
    return torch.bmm(fast_dropout(scores.softmax(-1), rate), v).unflatten(0, (samples, heads))


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where the mask is true, and elsewhere the number that gives an attention weight of 0."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


SAME = 1e-11  # largest relative difference of float64 logits that another order of summation explains


Call = tuple[str, int]
"""A module's name and the number of its call in a forward pass: layers that share weights call it several times."""

Narrowing = tuple[tuple[Call, bool], ...]
"""Which calls a model computes for the first token alone: some of linear modules, then one of a LayerNorm; or none.

True beside a linear call expands its result to all tokens again, because the model needs their number."""


@contextmanager
def narrowed(model: nn.Module, narrowing: Narrowing) -> Iterator[None]:
    """Run the model with this narrowing inside the block."""
    expanded = dict(narrowing)
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
        return output.expand(-1, tokens, -1) if expanded.get((name, counts[name])) else None

    with ExitStack() as hooks:
        for name in {name for name, _ in expanded}:
            module = model.get_submodule(name)
            hooks.enter_context(module.register_forward_pre_hook(partial(take_first, name)))
            hooks.enter_context(module.register_forward_hook(partial(expand, name)))
        yield


def prove_narrowing(model: nn.Module, run: Callable[[], Tensor]) -> Narrowing:
    """Return the widest narrowing that provably changes nothing; an empty one where nothing can be proved.

    The model is in float64 and eval mode, with no weights that are zero by design (see `admission.random_twin`); `run`
    computes its logits, by its own forward pass, on rows of several lengths.
    """
    calls, expected = _record_calls(model, run)
    norms = [index for index, (_, _, is_norm) in enumerate(calls) if is_norm]
    if len(norms) < 2:
        return ()
    candidates = calls[norms[-3] + 1 if len(norms) > 2 else 0 : norms[-2] + 1]
    weights = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(0))
    tensors = [tensor for _, tensor, _ in candidates]
    gradients = torch.autograd.grad((expected * weights.to(expected)).sum(), tensors, allow_unused=True)
    unread = [call for (call, _, _), grad in zip(candidates, gradients, strict=True) if _reads_first_only(grad)]
    norm = candidates[-1][0]
    proved: Narrowing = ((norm, False),)
    if norm not in unread or not _unchanged(model, run, expected, proved):
        return ()
    for call in unread[:-1]:
        for expand_again in (False, True):
            wider = (*proved[:-1], (call, expand_again), proved[-1])
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
            calls.append(((name, counts[name]), tensor, is_norm))

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
