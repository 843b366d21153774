"""Whether weights, config, tokenizer and rows belong together, found out before anything is trained.

transformers fills what a checkpoint lacks with random weights and says so in a log; a run would then train a
random encoder without anyone noticing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from scala_lab.tasks.tokens import TokenSplit


def check_complete(model: PreTrainedModel, report: Mapping[str, Any], source: str, *, with_head: bool) -> None:
    """Refuse weights that do not fill the encoder, or with `with_head` the whole classifier.

    Args:
        model: As loaded.
        report: What `from_pretrained(..., output_loading_info=True)` says: keys missing and of another shape.
        source: What to call the model in errors.
        with_head: Whether pooler and classifier must be there as well; else they may start fresh.
    """
    missing = sorted(name for name in report["missing_keys"] if with_head or not _starts_fresh(model, name))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        if all(_starts_fresh(model, name) for name in missing):
            raise UserError(f"{source} is not a trained classifier: its weights lack {missing[0]}{more}")
        raise UserError(f"{source}: the weights do not fit config.json: they lack {missing[0]}{more}")
    for name, found, wanted in sorted(report["mismatched_keys"]):
        if with_head or not _starts_fresh(model, name):
            raise UserError(
                f"{source}: the weights do not fit config.json: {name} is {tuple(found)}, not {tuple(wanted)}"
            )


def has_fresh_head(model: PreTrainedModel, report: Mapping[str, Any]) -> bool:
    """Whether anything between the encoder and the logits started fresh, since the checkpoint had no such head."""
    fresh = (*report["missing_keys"], *(name for name, _, _ in report["mismatched_keys"]))
    return any(not name.startswith(f"{model.base_model_prefix}.") for name in fresh)


def _starts_fresh(model: PreTrainedModel, name: str) -> bool:
    """Whether a weight belongs to what is put on top of an encoder."""
    return not name.startswith(f"{model.base_model_prefix}.") or ".pooler." in name


def check_finite(model: torch.nn.Module, source: str) -> None:
    """Refuse weights with nan or inf, naming the first tensor that has one."""
    for name, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            raise UserError(f"{source} has weights that are not finite: {name}")


def settle_pad_token(model: PreTrainedModel, tokenizer: Any, splits: Iterable[TokenSplit]) -> int:
    """The id that rows are padded with; a model without one is given an id, in its config, that no row has.

    Heads of decoders read the last token that is not padding, by the pad token of their config: so that token, not the
    tokenizer's, is what rows must be padded with, and one that is chosen here must not be a row's own.
    """
    config = model.config.get_text_config()
    vocabulary = _vocabulary(model)
    given = getattr(config, "pad_token_id", None)
    if isinstance(given, int) and 0 <= given < vocabulary:
        return given
    present = np.unique(np.concatenate([np.empty(0, np.int32), *(np.unique(split.ids) for split in splits)]))
    usual = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id]
    candidates = itertools.chain((token for token in usual if token is not None), reversed(range(vocabulary)))
    free = next((token for token in candidates if 0 <= token < vocabulary and token not in present), None)
    if free is None:
        raise UserError("the model has no padding token and the rows use its whole vocabulary: set pad_token_id")
    config.pad_token_id = model.config.pad_token_id = free
    return free


def _vocabulary(model: PreTrainedModel) -> int:
    """Number of word embeddings; that of the config where the model has no table."""
    try:
        table: Any = model.get_input_embeddings()
        return int(table.weight.shape[0])
    except (AttributeError, NotImplementedError):
        return int(getattr(model.config.get_text_config(), "vocab_size", 1 << 31))


def check_tokens(split: TokenSplit, chosen: np.ndarray, name: str) -> None:
    """Refuse a split with rows of no token at all: nothing would be read of them, and their answer is made up.

    Args:
        split: As loaded.
        chosen: The rows of it that are used.
        name: What to call the split in errors.
    """
    empty = np.sort(chosen[split.lengths[chosen] == 0])
    if len(empty):
        more = f" and of {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UserError(
            f"the tokenizer makes no token of row {empty[0] + 1} of the {name} rows{more}: give it a text "
            "or leave it out"
        )


def check_rows(model: PreTrainedModel, splits: Iterable[TokenSplit], source: str) -> None:
    """Refuse rows with tokens or lengths that the model has no embedding for."""
    vocabulary = _vocabulary(model)
    positions, full_attention = _positions(model), _longest_with_full_attention(model)
    for split in splits:
        largest, longest = int(split.ids.max(initial=0)), int(split.lengths.max(initial=0))
        if largest >= vocabulary:
            raise UserError(
                f"{source}: the tokenizer makes token ids up to {largest}, but the model has {vocabulary} "
                "word embeddings: the two do not belong together"
            )
        if positions is not None and longest > positions:
            raise UserError(
                f"{source} takes at most {positions} tokens, and a row has {longest}: give --max-length {positions}"
            )
        if full_attention is not None and longest > full_attention:
            raise UserError(
                f"{source} has sparse attention for rows of more than {full_attention} tokens, which the first shorter "
                "row turns off for good, so that its answers depend on the order of rows: set attention_type to "
                f"original_full in its config.json, or give --max-length {full_attention}"
            )


def _longest_with_full_attention(model: torch.nn.Module) -> int | None:
    """Tokens up to which BigBird's block-sparse attention is the full one; None for other models."""
    config: Any = model.config
    if getattr(config, "attention_type", None) != "block_sparse":
        return None
    return (5 + 2 * config.num_random_blocks) * config.block_size


def _positions(model: torch.nn.Module) -> int | None:
    """Tokens that the table of absolute positions has room for; RoBERTa's counts from after its padding row."""
    import torch

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and _POSITIONS.search(name):
            reserved = getattr(module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1)
            return module.num_embeddings - reserved
    return None


_POSITIONS = re.compile(r"(position_embeddings|positions?_embed|embed_positions|wpe|pos_emb)$")
"""Names of tables with one row per position; OPT's and BART's keep `offset` rows at their start."""
