"""Trace, density and layers against the dense matrix, with error bars and residuals that are true."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import t
from transformers import AutoModelForSequenceClassification

from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.spectrum import kappa_alpha, layer_blocks, layer_eigenvalues, spectral_density, trace
from scala_lab.errors import UserError
from tests.curvature.dense import Known, dense_hessian, tiny_batches
from tests.tiny import save_tiny_model


def interval(result, level):
    """Confidence interval of that level, by Student's t."""
    reach = float(t.ppf(0.5 + level / 2, len(result.samples) - 1)) * result.error
    return result.trace - reach, result.trace + reach


def test_trace_of_the_dense_matrix_lies_within_the_error_bar(every):
    result = trace(every.op, tol=1e-3, max_products=100)
    truth = float(every.matrix.trace())
    assert len(result.samples) == 100
    assert abs(result.trace - truth) < 3 * result.error
    low, high = interval(result, 0.99)
    assert low < truth < high
    # the bar is no wider than it must be: one probe's variance is twice the squared off-diagonal entries
    off = every.matrix - torch.diag(every.matrix.diag())
    assert result.error * np.sqrt(100) == pytest.approx(float((2 * off.square().sum()).sqrt()), rel=0.3)


def test_error_bar_covers_the_truth_as_often_as_it_says(case):
    op, truth = Known(case.matrix), float(case.matrix.trace())
    results = [trace(op, tol=1e-9, max_products=20, seed=seed) for seed in range(200)]
    covered = np.mean([low < truth < high for low, high in (interval(result, 0.9) for result in results)])
    assert 0.83 < covered < 0.97
    means = np.array([result.trace for result in results])
    assert abs(means.mean() - truth) < 3 * means.std() / np.sqrt(len(means))


@pytest.mark.parametrize("products", [8, 300])
def test_known_eigenpairs_shrink_the_error_and_bias_nothing_converged_or_not(case, products):
    op, matrix = case.op, case.matrix
    known = top_eigenpairs(op, k=6, tol=1e-8, max_products=products)
    assert known.converged == (products == 300)
    cheap = Known(matrix)
    full = known.eigenvectors
    known_full = type("Known", (), {"eigenvalues": known.eigenvalues, "touched_eigenvectors": full})()
    truth = float(matrix.trace())
    means = np.array([trace(cheap, 1e-9, 20, seed, known=known_full).trace for seed in range(200)])
    assert abs(means.mean() - truth) < 3 * means.std() / np.sqrt(len(means))
    plain = np.array([trace(cheap, 1e-9, 20, seed).trace for seed in range(200)])
    assert means.std() < (0.9 if products == 300 else 1.1) * plain.std()
    within = trace(op, 1e-9, 60, known=known)
    assert abs(within.trace - truth) < 3.5 * within.error


def test_stops_when_the_error_is_within_the_tolerance():
    matrix = torch.diag(torch.linspace(1, 2, 200, dtype=torch.float64))
    matrix[0, 1] = matrix[1, 0] = 3.0
    result = trace(Known(matrix), tol=0.01, max_products=500)
    assert result.converged
    assert 10 <= len(result.samples) < 100
    assert result.error <= 0.01 * abs(result.trace)
    hard = trace(Known(matrix), tol=1e-9, max_products=12)
    assert not hard.converged
    assert len(hard.samples) == 12
    assert hard.error > 1e-9 * abs(hard.trace)


def test_a_seed_gives_one_answer(case):
    first, second, other = (trace(case.op, 1e-9, 5, seed) for seed in (3, 3, 4))
    assert np.array_equal(first.samples, second.samples)
    assert not np.array_equal(first.samples, other.samples)


@pytest.mark.parametrize(("options", "words"), [({"max_products": 1}, "at least 2 probes"), ({"tol": 0.0}, "positive")])
def test_a_trace_of_bad_numbers_is_refused(case, options, words):
    with pytest.raises(UserError, match=words):
        trace(case.op, **options)


@pytest.fixture(scope="module")
def density_result(case):
    return spectral_density(case.op, probes=16, steps=30)


def moment(density, power):
    """tr(H^power) / n from the nodes themselves, and its standard error over the probes (nan for one)."""
    probes = int(density.probe_of.max()) + 1
    means = probes * np.bincount(density.probe_of, density.weights * density.nodes**power, probes)
    return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(probes)) if probes > 1 else float("nan")


def integral(values, grid):
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(grid)))


def check_moment(case, density_result, power):
    """tr(H^power) within the error bar, and the bar as wide as theory says.

    One probe z'Az of signs has the variance of twice A's squared off-diagonal entries.
    """
    matrix, size = torch.linalg.matrix_power(case.matrix, power), case.op.space.touched_size
    probes = int(density_result.probe_of.max()) + 1
    mean, error = moment(density_result, power)
    assert mean == pytest.approx(float(np.sum(density_result.weights * density_result.nodes**power)))
    assert abs(mean - float(matrix.trace()) / size) < 3.5 * error
    off = matrix - torch.diag(matrix.diag())
    expected = float((2 * off.square().sum() / probes).sqrt()) / size
    # a deviation from 16 probes is itself good to about a fifth, of values with heavy tails less
    assert expected / 2 < error < 2 * expected


def test_mass_is_one_and_where_the_eigenvalues_are(every):
    density_result = spectral_density(every.op, probes=16, steps=12)
    assert density_result.weights.sum() == pytest.approx(1, abs=1e-12)
    assert len(density_result.nodes) == 16 * 12
    for density in (density_result.density, density_result.full_density):
        assert integral(density, density_result.grid) == pytest.approx(1, abs=1e-6)
    for power in (1, 2):
        check_moment(every, density_result, power)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_moments_are_those_of_the_dense_matrix(case, density_result, power):
    check_moment(case, density_result, power)


def test_untouched_share_counts_the_rows_that_no_sample_uses(case, density_result):
    op, matrix = case.op, case.matrix
    # each untouched parameter is a row of zeros in the dense matrix
    empty = int((matrix.abs().sum(0) == 0).sum())
    assert density_result.untouched_share == pytest.approx((op.space.size - op.space.touched_size) / op.space.size)
    assert 0 < density_result.untouched_share * op.space.size <= empty
    zero = np.argmin(np.abs(density_result.grid))
    assert density_result.full_density[zero] > density_result.density[zero]


def test_quadrature_of_one_probe_is_exact_to_its_degree(case):
    op = case.op
    rule = spectral_density(op, probes=1, steps=4, seed=5)
    start = spectral_density(op, probes=1, steps=30, seed=5)
    for power in range(8):
        assert moment(rule, power)[0] == pytest.approx(moment(start, power)[0], rel=1e-8, abs=1e-12)
    assert moment(rule, 8)[0] != pytest.approx(moment(start, 8)[0], rel=1e-6)


def test_all_steps_find_the_eigenvalues_themselves_and_then_stop(case):
    op, matrix = case.op, case.matrix
    density_result = spectral_density(op, probes=1, steps=op.space.touched_size + 50)
    assert len(density_result.nodes) <= op.space.touched_size
    values = torch.linalg.eigvalsh(matrix).numpy()
    assert np.allclose(
        [density_result.nodes.max(), density_result.nodes.min()], [values.max(), values.min()], rtol=1e-8
    )
    distances = np.abs(density_result.nodes[:, None] - values[None, :]).min(1)
    assert distances[density_result.weights > 1e-6].max() < 1e-6


def test_kernel_is_a_gaussian_of_the_stated_width(case):
    density_result = spectral_density(case.op, probes=2, steps=10)
    assert density_result.width == pytest.approx(np.ptp(density_result.nodes) / 100)
    spread = integral(density_result.density * density_result.grid**2, density_result.grid)
    assert spread == pytest.approx(moment(density_result, 2)[0] + density_result.width**2, rel=1e-6)


@pytest.mark.parametrize("options", [{"probes": 0}, {"steps": 1}])
def test_a_density_of_bad_numbers_is_refused(case, options):
    with pytest.raises(UserError, match="at least"):
        spectral_density(case.op, **options)


def two_layers(folder, architecture="bert"):
    save_tiny_model(folder, architecture, labels=3, hidden=4, layers=2, positions=12)
    return AutoModelForSequenceClassification.from_pretrained(folder).double()


def indices_of(model, names):
    """Where parameters stand in the flat vector."""
    results, start = [], 0
    for name, value in model.named_parameters():
        if name in names:
            results.append(torch.arange(start, start + value.numel()))
        start += value.numel()
    return torch.cat(results)


@pytest.mark.parametrize("budget", [1 << 30, 0])
@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_each_layer_has_the_top_eigenvalue_of_its_block(tmp_path, architecture, budget):
    model, batches = two_layers(tmp_path, architecture), tiny_batches()
    matrix = dense_hessian(tmp_path, batches)
    op = HessianOperator(model, batches, budget=budget)
    results = layer_eigenvalues(op, model, tol=1e-7)
    prefix = {"bert": "bert.encoder.layer", "distilbert": "distilbert.transformer.layer"}[architecture]
    assert list(results) == ["embeddings", f"{prefix}.0", f"{prefix}.1", "head"]
    assert all(result.converged for result in results.values())
    assert sum(result.space.size for result in results.values()) == op.space.size
    for name, result in results.items():
        rows = indices_of(model, layer_blocks(op, model)[name])
        dense = float(torch.linalg.eigvalsh(matrix[rows][:, rows])[-1])
        assert result.eigenvalues[0] == pytest.approx(dense, rel=1e-6)
    alphas = [result.eigenvalues[0] for result in results.values()]
    assert kappa_alpha(results) == pytest.approx(max(alphas) / min(alphas))


@pytest.mark.parametrize("budget", [1 << 30, 0])
def test_block_product_is_that_of_the_block_and_leaves_the_whole_alone(tmp_path, budget):
    model, batches = two_layers(tmp_path), tiny_batches()
    matrix = dense_hessian(tmp_path, batches)
    op = HessianOperator(model, batches, budget=budget)
    whole = torch.randn(op.space.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for names in layer_blocks(op, model).values():
        block, rows = op.block(names), indices_of(model, names)
        vector = whole[rows]
        assert torch.allclose(block @ vector, matrix[rows][:, rows] @ vector, rtol=1e-8, atol=1e-10)
    assert op.products == 0
    assert torch.allclose(op @ whole, matrix @ whole, rtol=1e-8, atol=1e-10)


def test_residuals_decide_what_converged(tmp_path):
    model = two_layers(tmp_path)
    results = layer_eigenvalues(HessianOperator(model, tiny_batches()), model, tol=1e-6, max_products=3)
    assert all(result.hvps <= 3 for result in results.values())
    assert all(result.converged == (result.residuals[0] <= 1e-6) for result in results.values())
    assert not all(result.converged for result in results.values())


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
