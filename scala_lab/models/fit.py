"""Whether weights, config, tokenizer and rows belong together, found out before anything is trained.

transformers fills what a checkpoint lacks with random weights and says so in a log; a run would then train a
random encoder without anyone noticing.
"""

from __future__ import annotations

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
    table: Any = model.get_input_embeddings()
    positions = _positions(model)
    for split in splits:
        largest, longest = int(split.ids.max(initial=0)), int(split.lengths.max(initial=0))
        if largest >= table.num_embeddings:
            raise UserError(
                f"{source}: the tokenizer makes token ids up to {largest}, but the model has {table.num_embeddings} "
                "word embeddings: the two do not belong together"
            )
        if positions is not None and longest > positions:
            raise UserError(
                f"{source} takes at most {positions} tokens, and a row has {longest}: give --max-length {positions}"
            )


def _positions(model: torch.nn.Module) -> int | None:
    """Tokens that the table of absolute positions has room for; RoBERTa's counts from after its padding row."""
    import torch

    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None
