"""The study of sharpness and accuracy: on real runs of a tiny encoder, and on made-up runs of known relation."""

from __future__ import annotations

import numpy as np
import pytest

from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs
from scala_lab.study.api import all_studies
from scala_lab.study.profiles import EMBEDDED, LAPTOP, PAPER
from studies import flatness
from studies.flatness import ARMS, LARGEST, MEASURES, SHOWN, c28
from tests.studies.flatness_cases import flatness as made_up
from tests.studies.synthetic import tuned
from tests.studies.tiny_profile import TinyStore, tiny_profile

METHODS = ["baseline", "LAMB", "ScaLA, tuned t_s", "SAM"]


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return tiny_profile(tmp_path_factory.mktemp("tiny-profile"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return TinyStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cells(profile):
    """Those of four methods, two of them relatives."""
    return [cell for cell in flatness.cells(profile) if cell.labels["method"] in METHODS]


@pytest.fixture(scope="module")
def frame(store, cells):
    """What `analyse` gets."""
    return store.frame(cells)


@pytest.mark.parametrize("whole", [EMBEDDED, LAPTOP, PAPER])
def test_every_run_is_one_that_another_study_trains(whole):
    whole = tuned(whole)
    runs = {spec.run_id for cell in flatness.cells(whole) for spec in cell.specs}
    assert len(runs) == len(ARMS) * len(whole.seeds)
    others = [study for name, study in all_studies().items() if name != "flatness"]
    assert runs <= {spec.run_id for study in others for cell in study.cells(whole) for spec in cell.specs}


def test_measures_are_those_of_the_checkpoint(store, cells, frame):
    rows = flatness.flatness_rows(frame)
    assert rows[list(MEASURES)].notna().all(axis=None)
    row = rows.iloc[0]
    loaded = load_run(store.run(cells[0].specs[0]), 24)
    exact = top_eigenpairs(HessianOperator(loaded.model, loaded.sets[0]), k=5, tol=1e-6, seed=3).eigenvalues
    # a residual of 1e-2 leaves a relative error of at most that
    assert row[LARGEST] == pytest.approx(exact[0], rel=0.02)
    assert row["sum of top 5"] == pytest.approx(exact.sum(), rel=0.02)
    assert (rows["sharpest layer"] <= rows[LARGEST] * 1.02).all(), "a block's top eigenvalue is at most the matrix's"
    for kind in flatness.ASCENTS:
        assert (rows[f"{kind}, 5 steps"] >= rows[f"{kind}, 1 step"]).all(), "the best of five, the first among them"
    assert (rows["SAM at 4 rho, 5 steps"] > rows["SAM, 5 steps"]).all()


def test_findings_have_a_row_per_measure_and_method_and_judge_the_claim(profile, frame):
    findings = flatness.analyse(profile, frame)
    correlations, measures = (table.frame for table in findings.tables)
    assert list(correlations.index.unique("measure")) == list(MEASURES)
    assert len(correlations) == 3 * len(MEASURES)
    assert list(measures["method"]) == METHODS
    (claim,) = findings.claims
    assert claim.claim.id == "C28"
    assert [part.contextual for part in claim.parts] == [False, *[True] * (len(claim.parts) - 1)]
    # some methods of 96 rows that were not learnt are no ground for a verdict
    assert claim.verdict == "not testable here"
    assert len([axes for axes in findings.figures[0].figure.axes if axes.get_title()]) == len(SHOWN)
    assert "Rank correlation of the top eigenvalue" in findings.found


def test_runs_without_a_measurement_are_counted_and_the_others_stand(profile, frame):
    lost = frame.copy()
    lost.loc[(lost["method"] == "LAMB") & (lost["kind"] != flatness.RUN), "status"] = "failed"
    findings = flatness.analyse(profile, lost)
    assert "LAMB" not in set(findings.tables[1].frame["method"])
    assert any("2 failed" in note for note in findings.tables[1].notes)
    nothing = frame[frame["kind"] == flatness.RUN].drop(columns=[*MEASURES, *flatness.EVIDENCE])
    assert flatness.analyse(profile, nothing) == flatness.Findings()


def test_a_monotone_relation_is_a_correlation_of_minus_one():
    found = c28(made_up())
    assert found.parts[0].estimate.value == pytest.approx(-1)
    assert found.verdict == "supported"


def test_unrelated_sharpness_is_rarely_called_a_reason():
    verdicts = [c28(made_up(relation=0.0, within=1.0, draw=draw)).verdict for draw in range(20)]
    assert np.mean([verdict in ("supported", "reversed") for verdict in verdicts]) <= 0.15
    assert set(verdicts) >= {"undecided", "no effect of the claimed size"}


def test_a_method_without_any_relation_within_shows_in_the_part_on_seeds():
    within = next(part for part in c28(made_up(within=0.3)).parts if part.statement.endswith("seeds within methods"))
    assert within.verdict == "undecided"
    assert within.contextual


def test_sharpness_that_is_a_matter_of_loss_shows_when_loss_is_given():
    frame = made_up(within=0.3)
    frame["train_loss"] = 0.01 * np.log(frame[LARGEST]) + 0.1 + 0.002 * np.random.default_rng(0).normal(size=len(frame))
    parts = {part.statement: part for part in c28(frame).parts}
    assert parts["top eigenvalue and accuracy, all runs"].estimate.value < -0.8
    assert abs(parts["top eigenvalue and accuracy, all runs, given loss"].estimate.value) < 0.6


def test_a_setting_at_the_end_of_its_grid_is_no_objection_but_a_diverged_run_is():
    assert c28(made_up(interior=False)).verdict == "supported"
    frame = made_up()
    frame.loc[0, ["status", "score"]] = "diverged", np.nan
    assert [gate.name for gate in c28(frame).failed] == ["arms run"]
