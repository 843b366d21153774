from __future__ import annotations

import numpy as np

from studies.sharpness import c5, c6
from tests.studies.curvature_cases import sharpness


def test_deviation_alone_can_contradict():
    found = c5(sharpness(deviation=0.2))
    assert [part.verdict for part in found.parts[:2]] == ["supported", "reversed"]
    assert found.verdict == "reversed"


def test_one_set_of_rows_leaves_the_deviation_out():
    found = c5(sharpness(sets=1))
    assert found.verdict == "supported"
    assert found.parts[1].contextual


def test_eigenvalues_that_did_not_converge_decide_nothing():
    frame = sharpness().assign(eigenvalue=np.nan, deviation=np.nan)
    assert c5(frame).verdict == "not testable here"
    assert c6(frame).verdict == "not testable here"


def test_one_seed_decides_nothing():
    found = c6(sharpness(seeds=1))
    assert found.verdict == "not testable here"
    assert [gate.name for gate in found.failed] == ["seeds"]


def test_a_model_that_has_not_fitted_its_rows_is_not_judged():
    frame = sharpness()
    frame.loc[(frame["method"] == "ScaLA, tuned t_s") & (frame["seed"] == 0), "train_loss"] = 0.69
    assert [gate.name for gate in c6(frame).failed] == ["fitted"]
    assert c5(frame).verdict == "supported"


def test_sharpness_that_is_a_matter_of_loss_shows_at_equal_loss():
    at_equal_loss = next(part for part in c5(sharpness(matched=1.0)).parts if "equal loss" in part.statement)
    assert at_equal_loss.verdict == "no effect of the claimed size"
    assert at_equal_loss.contextual
