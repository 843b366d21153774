"""Training, evaluation and sharpness of many architectures equal the stock model's."""

from __future__ import annotations

import pytest

from scala_lab.equality import compare_architecture


@pytest.mark.parametrize(
    "model_type", ["gpt2", "llama", "qwen2", "mistral", "opt", "gemma", "gpt_neox", "bloom", "phi"]
)
def test_decoders_equal_the_stock_model(model_type):
    assert [result.use for result in compare_architecture(model_type) if not result.equal] == []


@pytest.mark.parametrize(
    "model_type", ["modernbert", "deberta-v2", "xlnet", "esm", "mixtral", "convbert", "longformer"]
)
def test_other_architectures_equal_the_stock_model(model_type):
    assert [result.use for result in compare_architecture(model_type) if not result.equal] == []
