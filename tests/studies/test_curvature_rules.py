from __future__ import annotations

from studies.sharpness import c5, c6
from tests.studies.curvature_cases import sharpness


def test_deviation_alone_can_contradict():
    assert [part.verdict for part in c5(sharpness(deviation=0.2)).parts] == ["reproduced", "contradicted"]


def test_eigenvalues_that_did_not_converge_decide_nothing():
    assert c5(sharpness(converged=False)).verdict == "not run"
    assert c6(sharpness(converged=False)).verdict == "not run"


def test_one_seed_decides_nothing():
    assert c6(sharpness(seeds=1)).verdict == "inconclusive"
