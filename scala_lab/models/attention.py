"""Attention that does no needless work on CPU.

torch's kernel for attention with dropout draws a random number per entry and copies what it scales. Here masks are
drawn the quick way (see dropout.py), and scale and padding enter with the product of queries and keys. And where all
queries are one that is repeated, because a model's last layer is computed for the first token alone (see
first_token.py), it is answered once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scala_lab.models.dropout import quick_dropout

NAME = "scala_lab"
"""Of this attention among those of transformers."""


def quicken_attention(model: nn.Module) -> None:
    """Have a model that would use torch's own attention use this one."""
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import AttentionMaskInterface

    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, padding_mask)
        model.set_attn_implementation(NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """What each query (samples, heads, tokens, width) finds, as transformers asks for it: (samples, tokens, ...)."""
    tokens, plain = query.shape[2], not _other_kind(module, further)
    if plain and asks_once(query):
        query, attention_mask = query[:, :, :1], one_question(attention_mask)
    if plain and dropout and query.is_cpu and query.shape[1] == key.shape[1]:
        found = _with_dropout(query, key, value, attention_mask, dropout, scaling).transpose(1, 2)
    else:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **further
        )
    return found.expand(-1, tokens, -1, -1) if found.shape[1] != tokens else found, None


def padding_mask(*, mask_function: Any, attention_mask: Tensor | None = None, **further: Any) -> Tensor | None:
    """What is added to scores, as transformers asks for it: one row per sample serves all of its queries."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    plain = mask_function is bidirectional_mask_function and further.get("allow_is_bidirectional_skip")
    if not plain or attention_mask is None or attention_mask.shape[-1] != further["kv_length"]:
        return sdpa_mask(mask_function=mask_function, attention_mask=attention_mask, **further)
    return _additive(attention_mask[:, None, None, :].bool(), further.get("dtype", torch.float32))


def asks_once(query: Tensor) -> bool:
    """Whether all queries of a sample are one that is repeated, by their place in memory."""
    return query.shape[-2] > 1 and query.stride(-2) == 0


def one_question(mask: Tensor | None) -> Tensor | None:
    """The mask of the first query."""
    return None if mask is None else mask[..., :1, :]


def _other_kind(module: nn.Module, further: dict[str, Any]) -> bool:
    """Whether the model asks for something beside masked attention with dropout."""
    causal = further.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return bool(causal) or any(further.get(name) is not None for name in ("position_bias", "cache", "softcap"))


def _with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rate: float, scaling: float | None
) -> Tensor:
    q, k, v = (part.flatten(0, 1) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.baddbmm(_bias(mask, query, key), q, k.transpose(1, 2), alpha=scale)
    return torch.bmm(quick_dropout(scores.softmax(-1), rate), v).unflatten(0, query.shape[:2])


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    if mask is None:
        return query.new_zeros(1)
    if mask.dtype == torch.bool:
        mask = _additive(mask, query.dtype)
    samples, heads = query.shape[:2]
    return mask.expand(samples, heads, -1, -1).reshape(samples * heads, -1, key.shape[2])


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 for what takes part, and else as much as makes a share of 0."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
