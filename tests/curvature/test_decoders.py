"""Products for decoders, whose heads read the last token that is not padding."""

from __future__ import annotations

import pytest
import torch

from scala_lab.curvature import HessianOperator
from scala_lab.models.architectures import tiny_classifier

LENGTHS = (3, 7, 5, 4)


def rows(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(24, 64, (length,), generator=rng) for length in LENGTHS]


def alone():
    """Every row as a batch of its own."""
    return [
        {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None], "labels": torch.tensor([number % 2])}
        for number, row in enumerate(rows())
    ]


def padded(token, side):
    """All rows in one batch."""
    ids, width = torch.full((len(LENGTHS), max(LENGTHS)), token), max(LENGTHS)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows()):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[number, place], mask[number, place] = row, 1
    return [{"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(LENGTHS)) % 2}]


@pytest.mark.parametrize("pad_token", [None, 5])
@pytest.mark.parametrize(
    ("model_type", "side"),
    # rotations know no absolute positions, so that the side of the padding changes nothing
    [("gpt2", "right"), ("llama", "right"), ("llama", "left"), ("qwen2", "right"), ("opt", "right")],
)
def test_padded_rows_have_the_products_of_rows_alone(model_type, side, pad_token):
    """Also where the config has no pad token, and the stock model would refuse the batch."""
    model = tiny_classifier(model_type).double()
    model.config.pad_token_id = pad_token
    size, rng = sum(p.numel() for p in model.parameters()), torch.Generator().manual_seed(1)
    vector = torch.randn(size, generator=rng).double()
    expected = HessianOperator(model, alone()) @ vector
    result = HessianOperator(model, padded(0 if pad_token is None else pad_token, side)) @ vector
    # Llama and Qwen compute their norms in float32
    tolerance = 1e-4 if model_type in ("llama", "qwen2") else 1e-9
    assert float((result - expected).norm() / expected.norm()) < tolerance
    assert model.config.pad_token_id == pad_token
