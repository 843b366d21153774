"""Dropout and attention that do no needless work on CPU.

Dropout: torch draws one random number per entry, which takes more time than a small encoder's attention. Here one
number of 64 bits serves four entries, 16 bits each, at a sixth of the cost; a rate is rounded to the nearest 1/65536,
and the scale fits the rounded rate, so the mean stays exact. Masks come from torch's own generator: seeding it fixes
them.

Attention: torch's kernel for attention with dropout draws a random number per entry and copies what it scales. Here
masks are drawn as above, and scale and padding enter with the product of queries and keys. Where the queries of a
sample are one broadcast query, because the last layer is computed for the first token alone (see narrowing.py),
attention is computed for this query and its result broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Return the dropout rates of a model's config, and with `jitter` those that make the routing to experts random.

    A rate of None means that another one is used instead.
    """
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
    """Compute scaled dot-product attention, by the interface of transformers.

    Queries are (samples, heads, tokens, width), as are keys and values, whose heads may be fewer and shared by groups;
    the mask is boolean or added to scores, (samples, 1 or heads, 1 or tokens, tokens). Anything but plain
    bidirectional attention is left to torch's kernel.

    Returns:
        (samples, tokens, heads, width), and None in place of attention weights.
    """
    tokens, plain = query.shape[2], _is_plain(module, options) and query.shape[1] == key.shape[1]
    if plain and is_broadcast_query(query):
        query, attention_mask = query[:, :, :1], first_query_mask(attention_mask)
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


def first_query_mask(mask: Tensor | None) -> Tensor | None:
    """Return the mask of the first query."""
    return None if mask is None else mask[..., :1, :]


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
