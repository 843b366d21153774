from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs
from scala_lab.curvature.checkpoint import disjoint_sets, sorted_batches
from scala_lab.data.tokens import Padding
from scala_lab.models.loading import load_classifier
from scala_lab.study.profiles import EMBEDDED, LAPTOP, PAPER
from scala_lab.training.preparation import prepare
from studies import landscape, sharpness, spectrum
from tests.studies.synthetic import tuned
from tests.studies.tiny_profile import TinyStore, tiny_profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return tiny_profile(tmp_path_factory.mktemp("tiny-profile"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return TinyStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def frame(profile, store):
    """What `analyse` gets."""
    return store.frame(sharpness.cells(profile))


@pytest.fixture(scope="module")
def sharp(frame):
    """Runs with what was measured of each."""
    return sharpness.sharpness_rows(frame)


METHODS = [
    *("small-batch baseline", "baseline", "LAMB", "ScaLA, tuned t_s", "ScaLA, other t_s", "ScaLA-effective", "SAM")
]


@pytest.mark.parametrize("whole", [EMBEDDED, LAPTOP, PAPER])
def test_the_three_studies_look_at_the_same_runs(whole):
    cells = sharpness.cells(tuned(whole))
    runs = {spec.run_id for cell in cells for spec in cell.specs}
    assert len(runs) == len(METHODS) * len(whole.seeds)
    assert {cell.key for cell in cells if cell.labels["kind"] == sharpness.RUN} == runs
    for study in (spectrum, landscape):
        assert {spec.run_id for cell in study.cells(tuned(whole)) for spec in cell.specs} < runs
    assert {cell.labels["task"] for cell in cells} == {whole.pair[0]}


def test_eigenvalues_are_those_of_the_checkpoint_on_its_training_rows(profile, store, sharp):
    row = sharp.iloc[0]
    run = store.run(sharpness.cells(profile)[0].specs[0])
    prepared = prepare(run.spec)
    model = load_classifier(str(run.checkpoint), prepared.task, new_head=False)
    values = []
    for rows in disjoint_sets(prepared.train, 24, 2, seed=0):
        batches = sorted_batches(prepared.train, rows, 64, Padding(prepared.tokenizer.pad_token_id))
        values.append(top_eigenpairs(HessianOperator(model, batches), tol=1e-5, seed=3).eigenvalues[0])
    # residuals of 1e-3 leave relative errors of at most that
    assert row["eigenvalues"] == pytest.approx(values, rel=2e-3)
    assert row["eigenvalue"] == pytest.approx(np.mean(values), rel=2e-3)
    assert row["deviation"] == pytest.approx(np.std(values, ddof=1), rel=0.05)


def test_power_iteration_checks_the_first_seed_and_agrees_within_its_residual(sharp):
    checked = sharp[sharp["power_hvps"].notna()]
    assert set(checked["seed"]) == {0}
    assert len(checked) == len(METHODS)
    first = np.array([values[0] for values in checked["eigenvalues"]])
    agree = np.abs(checked["power_eigenvalue"] / first - 1)
    sure = checked["power_residual"] <= 1e-2
    assert (agree[sure] < 2e-2).all()


def test_equal_loss_is_the_largest_that_one_of_the_three_runs_of_a_seed_ends_with(profile, sharp):
    compared = sharp[sharp["matched"].notna()]
    assert set(compared["method"]) == {"small-batch baseline", "baseline", "ScaLA, tuned t_s"}
    for _, seed in compared.groupby("seed"):
        target = seed["matched_loss"].max()
        ended = seed["matched_epoch"] == profile.settings["epochs"]
        # the run that ends with it is measured where it ends, on its first set of rows
        assert np.isclose(seed[ended]["matched_loss"], target).any()
        worst = seed[np.isclose(seed["matched_loss"], target) & ended].iloc[0]
        assert worst["matched"] == pytest.approx(worst["eigenvalues"][0], rel=2e-3)
        assert (seed["matched_loss"] <= target * (1 + 1e-6)).all()


def test_a_run_that_is_trained_again_ends_in_its_own_checkpoint(profile, store):
    run = store.run(next(cell for cell in sharpness.cells(profile) if cell.labels["method"] == "baseline").specs[0])
    loaded = load_run(run, 24)
    ended = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    assert sharpness.train_until(run, loaded, -math.inf) == profile.settings["epochs"]
    for name, tensor in loaded.model.state_dict().items():
        assert torch.allclose(tensor, ended[name], rtol=0, atol=1e-6), name
    # the state where the loss first falls to that of the start is an early one
    assert sharpness.train_until(run, loaded, math.inf) <= 1


def test_sharpness_gives_a_row_for_every_method_and_judges_both_claims(profile, frame):
    findings = sharpness.analyse(profile, frame)
    table = findings.tables[0].frame
    assert list(table["method"]) == METHODS
    assert np.isnan(table["over small batch"].iloc[0])
    assert [claim.claim.id for claim in findings.claims] == ["C5", "C6"]
    assert all(part.estimate.n == 2 for claim in findings.claims for part in claim.parts)
    # 96 rows that were not learnt are no ground for a verdict
    assert {claim.verdict for claim in findings.claims} == {"not testable here"}
    assert [drawing.name for drawing in findings.figures] == ["", "ratios", "loss"]
    assert "Figure 1(c)" in findings.figures[0].caption
    assert "large over small batch" in findings.found


def test_a_method_that_failed_is_named_and_the_others_stand(profile, frame):
    lost = frame.copy()
    lost.loc[(lost["method"] == "LAMB") & (lost["kind"] == "measurement"), "status"] = "failed"
    findings = sharpness.analyse(profile, lost)
    assert "LAMB" not in set(findings.tables[0].frame["method"])
    assert any("LAMB (2 runs)" in note for note in findings.tables[0].notes)


def test_eigenvalues_without_any_of_the_first_seed_lack_only_the_check(profile, frame):
    second = frame[frame["seed"] != profile.seeds[0]].dropna(axis="columns", how="all")
    table = sharpness.analyse(profile, second).tables[0].frame
    assert list(table["method"]) == METHODS
    assert table["top eigenvalue"].notna().all()
    assert (table["power products"] == 0).all()


def test_spectrum_agrees_with_sharpness_and_its_parts_with_one_another(profile, store, sharp):
    frame = store.frame(spectrum.cells(profile))
    for run in frame.to_dict("records"):
        same = sharp[(sharp["method"] == run["method"]) & (sharp["seed"] == run["seed"])].iloc[0]
        assert run["eigenvalues"][0] == pytest.approx(same["eigenvalues"][0], rel=2e-3)
        # a block of a symmetric matrix has its eigenvalues between the matrix's ends
        assert max(run["layer_eigenvalues"]) <= run["eigenvalues"][0] * 1.002
        assert sum(run["weights"]) == pytest.approx(1)
        assert min(run["nodes"]) >= run["smallest"] * 1.01 - 1e-3
        assert max(run["nodes"]) <= run["eigenvalues"][0] * 1.002
    findings = spectrum.analyse(profile, frame)
    whole, layers = (table.frame for table in findings.tables)
    assert list(whole["method"]) == list(layers.columns) == ["small-batch baseline", "baseline", "ScaLA, tuned t_s"]
    assert layers.index[0] == "embeddings"
    assert len(findings.figures) == 2


def test_landscape_has_one_scale_and_the_checkpoint_at_its_centre(profile, store, sharp, monkeypatch):
    monkeypatch.setattr(landscape, "LINE", {"line_points": 5, "line_reach": 0.01})
    monkeypatch.setattr(landscape, "PLANE", {"plane_points": 3, "plane_reach": 0.5})
    frame = store.frame(landscape.cells(profile))
    for run in frame.to_dict("records"):
        same = sharp[(sharp["method"] == run["method"]) & (sharp["seed"] == run["seed"])].iloc[0]
        line = np.array(run["line_loss"])
        centre = line[2]
        assert run["plane_loss"][4] == pytest.approx(centre)
        # the second derivative along a unit eigenvector is its eigenvalue; float32 losses leave a few percent
        second = (line[0] - 2 * centre + line[4]) / 0.01**2
        assert second == pytest.approx(same["eigenvalues"][0], rel=0.1, abs=0.05)
    findings = landscape.analyse(profile, frame)
    assert [drawing.name for drawing in findings.figures] == ["line", "", "surface"]
    assert list(findings.tables[0].frame["method"]) == ["small-batch baseline", "baseline", "ScaLA, tuned t_s"]
