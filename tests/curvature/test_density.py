from __future__ import annotations

import numpy as np
import pytest
import torch

from scala_lab.curvature.spectrum import spectral_density
from scala_lab.errors import UserError


@pytest.fixture(scope="module")
def found(case):
    return spectral_density(case.op, probes=16, steps=30)


def moment(density, power):
    """tr(H^power) / n from the nodes themselves, and its standard error over the probes (nan for one)."""
    probes = int(density.probe_of.max()) + 1
    means = probes * np.bincount(density.probe_of, density.weights * density.nodes**power, probes)
    return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(probes)) if probes > 1 else float("nan")


def integral(values, grid):
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(grid)))


def check_moment(case, found, power):
    """tr(H^power) within the error bar, and the bar as wide as theory says.

    One probe z'Az of signs has the variance of twice A's squared off-diagonal entries.
    """
    matrix, size = torch.linalg.matrix_power(case.matrix, power), case.op.space.touched_size
    probes = int(found.probe_of.max()) + 1
    mean, error = moment(found, power)
    assert mean == pytest.approx(float(np.sum(found.weights * found.nodes**power)))
    assert abs(mean - float(matrix.trace()) / size) < 3.5 * error
    off = matrix - torch.diag(matrix.diag())
    expected = float((2 * off.square().sum() / probes).sqrt()) / size
    # a deviation from 16 probes is itself good to about a fifth, of values with heavy tails less
    assert expected / 2 < error < 2 * expected


def test_mass_is_one_and_where_the_eigenvalues_are(every):
    found = spectral_density(every.op, probes=16, steps=12)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert found.hvps == len(found.nodes) == 16 * 12
    for density in (found.density, found.full_density):
        assert integral(density, found.grid) == pytest.approx(1, abs=1e-6)
    for power in (1, 2):
        check_moment(every, found, power)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_moments_are_those_of_the_dense_matrix(case, found, power):
    check_moment(case, found, power)


def test_untouched_share_counts_the_rows_that_no_sample_uses(case, found):
    op, matrix = case.op, case.matrix
    # each untouched parameter is a row of zeros in the dense matrix
    empty = int((matrix.abs().sum(0) == 0).sum())
    assert found.untouched_share == pytest.approx((op.space.size - op.space.touched_size) / op.space.size)
    assert 0 < found.untouched_share * op.space.size <= empty
    zero = np.argmin(np.abs(found.grid))
    assert found.full_density[zero] > found.density[zero]


def test_quadrature_of_one_probe_is_exact_to_its_degree(case):
    op = case.op
    rule = spectral_density(op, probes=1, steps=4, seed=5)
    start = spectral_density(op, probes=1, steps=30, seed=5)
    for power in range(8):
        assert moment(rule, power)[0] == pytest.approx(moment(start, power)[0], rel=1e-8, abs=1e-12)
    assert moment(rule, 8)[0] != pytest.approx(moment(start, 8)[0], rel=1e-6)


def test_all_steps_find_the_eigenvalues_themselves_and_then_stop(case):
    op, matrix = case.op, case.matrix
    found = spectral_density(op, probes=1, steps=op.space.touched_size + 50)
    assert found.hvps <= op.space.touched_size
    values = torch.linalg.eigvalsh(matrix).numpy()
    assert np.allclose([found.nodes.max(), found.nodes.min()], [values.max(), values.min()], rtol=1e-8)
    distances = np.abs(found.nodes[:, None] - values[None, :]).min(1)
    assert distances[found.weights > 1e-6].max() < 1e-6


def test_kernel_is_a_gaussian_of_the_stated_width(case):
    found = spectral_density(case.op, probes=2, steps=10, width=0.05)
    assert found.width == 0.05
    spread = integral(found.density * found.grid**2, found.grid)
    assert spread == pytest.approx(moment(found, 2)[0] + 0.05**2, rel=1e-6)


@pytest.mark.parametrize("options", [{"probes": 0}, {"steps": 1}, {"width": 0.0}])
def test_bad_numbers_are_refused(case, options):
    with pytest.raises(UserError, match=r"at least|positive"):
        spectral_density(case.op, **options)
