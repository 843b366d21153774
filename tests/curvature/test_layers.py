from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.spectrum import kappa_alpha, layer_blocks, layer_eigenvalues
from tests.curvature.dense import dense_hessian, tiny_batches
from tests.tiny import save_tiny_model


def two_layers(folder, architecture="bert"):
    save_tiny_model(folder, architecture, labels=3, hidden=4, layers=2, positions=12)
    return AutoModelForSequenceClassification.from_pretrained(folder).double()


def places(model, names):
    """Where parameters stand in the flat vector."""
    found, start = [], 0
    for name, value in model.named_parameters():
        if name in names:
            found.append(torch.arange(start, start + value.numel()))
        start += value.numel()
    return torch.cat(found)


@pytest.mark.parametrize("budget", [1 << 30, 0])
@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_each_layer_has_the_top_eigenvalue_of_its_block(tmp_path, architecture, budget):
    model, batches = two_layers(tmp_path, architecture), tiny_batches()
    matrix = dense_hessian(tmp_path, batches)
    op = HessianOperator(model, batches, budget=budget)
    found = layer_eigenvalues(op, model, tol=1e-7)
    prefix = {"bert": "bert.encoder.layer", "distilbert": "distilbert.transformer.layer"}[architecture]
    assert list(found) == ["embeddings", f"{prefix}.0", f"{prefix}.1", "head"]
    assert all(result.converged for result in found.values())
    assert sum(result.space.size for result in found.values()) == op.space.size
    for name, result in found.items():
        rows = places(model, layer_blocks(op, model)[name])
        dense = float(torch.linalg.eigvalsh(matrix[rows][:, rows])[-1])
        assert result.eigenvalues[0] == pytest.approx(dense, rel=1e-6)
    alphas = [result.eigenvalues[0] for result in found.values()]
    assert kappa_alpha(found) == pytest.approx(max(alphas) / min(alphas))


@pytest.mark.parametrize("budget", [1 << 30, 0])
def test_block_product_is_that_of_the_block_and_leaves_the_whole_alone(tmp_path, budget):
    model, batches = two_layers(tmp_path), tiny_batches()
    matrix = dense_hessian(tmp_path, batches)
    op = HessianOperator(model, batches, budget=budget)
    whole = torch.randn(op.space.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for names in layer_blocks(op, model).values():
        block, rows = op.block(names), places(model, names)
        vector = whole[rows]
        assert torch.allclose(block @ vector, matrix[rows][:, rows] @ vector, rtol=1e-8, atol=1e-10)
    assert op.products == 0
    assert torch.allclose(op @ whole, matrix @ whole, rtol=1e-8, atol=1e-10)


def test_residuals_decide_what_converged(tmp_path):
    model = two_layers(tmp_path)
    found = layer_eigenvalues(HessianOperator(model, tiny_batches()), model, tol=1e-6, max_products=3)
    assert all(result.hvps <= 3 for result in found.values())
    assert all(result.converged == (result.residuals[0] <= 1e-6) for result in found.values())
    assert not all(result.converged for result in found.values())


def test_only_layers_of_the_operator_are_split(tmp_path):
    model = two_layers(tmp_path)
    op = HessianOperator(model, tiny_batches(), parameters=["*.layer.1.*", "classifier.*"])
    assert list(layer_blocks(op, model)) == ["bert.encoder.layer.1", "head"]
    assert layer_blocks(op, model)["head"] == ["classifier.weight", "classifier.bias"]


def test_a_layer_without_curvature_makes_kappa_infinite():
    def layers(*alphas):
        return {str(index): SimpleNamespace(eigenvalues=[alpha]) for index, alpha in enumerate(alphas)}

    assert kappa_alpha(layers(-2.0, 0.5)) == 4
    assert kappa_alpha(layers(2.0, 0.0)) == float("inf")
