from __future__ import annotations

import scipy.stats
import torch

from scala_lab.methods.base import mix, normal_noise, uniform_noise

SAMPLES = torch.tensor([5, 0, 123456, 6])


def test_a_number_depends_on_its_coordinates_alone():
    whole = normal_noise(1, 2, SAMPLES, torch.arange(30)[None], 16, torch.float64)
    part = normal_noise(1, 2, SAMPLES[[2, 0]], torch.arange(20)[None], 16, torch.float64)
    assert torch.equal(part, whole[[2, 0], :20])


def test_every_coordinate_matters():
    first = normal_noise(1, 2, SAMPLES, torch.arange(30)[None], 16, torch.float64)
    for other in (
        normal_noise(2, 2, SAMPLES, torch.arange(30)[None], 16, torch.float64),
        normal_noise(1, 3, SAMPLES, torch.arange(30)[None], 16, torch.float64),
    ):
        assert float((first == other).double().mean()) == 0
    assert len(first.unique()) > 0.999 * first.numel()


def test_distributions():
    samples = torch.arange(200)
    normal = normal_noise(0, 0, samples, torch.arange(10)[None], 64, torch.float64)
    assert scipy.stats.kstest(normal.flatten().numpy(), "norm").pvalue > 0.001
    uniform = uniform_noise(0, 0, samples, torch.arange(10)[None], 64, torch.float64)
    assert scipy.stats.kstest(uniform.flatten().numpy(), "uniform", args=(-1, 2)).pvalue > 0.001
    # neighbours along each axis are uncorrelated: 5 standard errors
    for axis in range(3):
        left, right = normal.narrow(axis, 0, normal.shape[axis] - 1), normal.narrow(axis, 1, normal.shape[axis] - 1)
        assert abs(float((left * right).mean())) < 5 / left.numel() ** 0.5


def test_mix_separates_and_repeats():
    seen = {mix(a, b, c) for a in range(10) for b in range(10) for c in range(-1, 9)}
    assert len(seen) == 1000
    assert all(0 <= value < 2**63 for value in seen)
    assert mix(1, 2) == mix(1, 2) != mix(2, 1)
