"""The study of sharpness and accuracy: on real runs of a tiny encoder, and on made-up runs of known relation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scala_lab.curvature import HessianOperator, layer_eigenvalues, load_run, top_eigenpairs, trace
from scala_lab.curvature.operator import Shortcuts
from scala_lab.curvature.sam_sharpness import sam_sharpness
from scala_lab.study.api import all_studies
from scala_lab.study.profiles import EMBEDDED, LAPTOP, PAPER
from scala_lab.training.distributed import World
from scala_lab.training.preparation import prepare
from scala_lab.training.trainer import Training
from studies import flatness
from studies.flatness import ARMS, LARGEST, MATCHED, MATCHED_ARMS, MEASURES, SHOWN, c28
from studies.sharpness import MEASUREMENT, RUN
from tests.studies.curvature_cases import flatness as made_up
from tests.studies.synthetic import tuned
from tests.studies.tiny_profile import TinyStore, tiny_profile

METHODS = ["baseline", "LAMB", "ScaLA, tuned t_s"]


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return tiny_profile(tmp_path_factory.mktemp("tiny-profile"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return TinyStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cells(profile):
    """Those of three methods, two of them relatives."""
    return [cell for cell in flatness.cells(profile) if cell.labels["method"] in METHODS]


@pytest.fixture(scope="module")
def frame(store, cells):
    """What `analyse` gets."""
    return store.frame(cells)


@pytest.mark.parametrize("whole", [EMBEDDED, LAPTOP, PAPER])
def test_every_run_is_one_that_another_study_trains(whole):
    profile = tuned(whole)
    cells = flatness.cells(profile)
    runs = {spec.run_id for cell in cells for spec in cell.specs}
    assert len(runs) == len(ARMS) * len(whole.seeds)
    others = [study for name, study in all_studies().items() if name != "flatness"]
    assert runs <= {spec.run_id for study in others for cell in study.cells(profile) for spec in cell.specs}
    measured = [cell for cell in cells if cell.labels["kind"] != RUN]
    plan = whole.curvature
    arms = len(ARMS) + (len(MATCHED_ARMS) if plan.matched_loss is not None else 0)
    assert len(measured) == arms * len(whole.seeds)
    assert all(len(cell.specs) == 1 for cell in measured), "what is measured of a run depends on no other one"
    sizes = {(cell.item.settings["samples"], cell.item.settings["threads"]) for cell in measured}
    assert sizes == {(32 if whole is EMBEDDED else 256, plan.threads)}
    at_loss = {cell.item.settings.get("matched_loss") for cell in measured}
    assert at_loss == {None, plan.matched_loss}
    assert (plan.matched_loss is None) == (whole is EMBEDDED)


def test_measures_are_those_of_the_checkpoint(store, cells, frame):
    rows = flatness.flatness_rows(frame)
    ends = rows[rows["kind"] == MEASUREMENT]
    assert ends[list(MEASURES)].notna().all(axis=None)
    row, rho = ends.iloc[0], EMBEDDED.start_radii["sam_rho"]
    loaded = load_run(store.run(cells[0].specs[0]), 24)
    op = HessianOperator(loaded.model, loaded.sets[0])
    exact = top_eigenpairs(op, k=5, tol=1e-5, seed=3)
    layers = layer_eigenvalues(op, loaded.model, tol=1e-5, seed=3)
    # a residual of 1e-2 leaves a relative error of at most that
    assert row["eigenvalues"] == pytest.approx(exact.eigenvalues, rel=0.011)
    assert row[LARGEST] == row["eigenvalues"][0]
    assert row["sum of top 5"] == pytest.approx(sum(row["eigenvalues"]))
    assert row["layers"] == list(layers) == ["embeddings", *(f"bert.encoder.layer.{n}" for n in (0, 1)), "head"]
    assert row["layer_eigenvalues"] == pytest.approx([x.eigenvalues[0] for x in layers.values()], rel=0.011)
    assert row["sharpest layer"] == max(row["layer_eigenvalues"])
    total = trace(op, max_products=100, seed=3, known=exact)
    assert abs(row["trace"] - total.trace) < 5 * (row["trace_error"] + total.error)
    assert row["loss"] == pytest.approx(op.loss())
    for kind, radius in (("SAM", rho), ("ASAM", 10 * rho)):
        rises = sam_sharpness(loaded.model, loaded.sets[0], radius, 5, adaptive=kind == "ASAM")
        assert row[f"{kind}, 1 step"] == pytest.approx(rises[0], rel=1e-3)
        assert row[f"{kind}, 5 steps"] == pytest.approx(max(rises), rel=1e-3)


def test_at_the_matched_loss_a_run_is_what_training_to_there_leaves(profile, store, tmp_path):
    rows = [f"w{row % 2} w{2 + row % 7} w{9 + row % 11},{row % 2}" for row in range(96)]  # the first word is the label
    (tmp_path / "easy.csv").write_text("\n".join(["text,label", *rows]))
    spec = profile.spec(str(tmp_path / "easy.csv"), "plain", 16, 1e-2, train_samples=64, heldout_samples=7)
    run = store.run(spec)
    loaded, training = load_run(run, 24), Training(run.spec, prepare(run.spec), World(0, 1, torch.device("cpu")))
    training.model.train()
    losses, states = [], []
    for step in range(training.steps):
        training.accumulate(step)
        training.update(step)
        states.append({name: tensor.clone() for name, tensor in training.model.state_dict().items()})
        loaded.model.load_state_dict(states[-1])
        losses.append(HessianOperator(loaded.model, loaded.sets[0], budget=0, shortcuts=Shortcuts()).loss())
    middle = 0.9 * losses[0] + 0.1 * losses[-1]
    stop = next(step for step, loss in enumerate(losses) if loss <= middle)
    target = (losses[stop] + min(losses[:stop])) / 2  # clear of rounding on both sides
    share = target / run.record["chance"]["loss"]
    found = flatness.measure([run], samples=24, sam_rho=0.05, threads=1, matched_loss=share)
    assert found["epoch"] == (stop + 1) / training.plan.steps_per_epoch < run.spec.optim.epochs
    assert found["loss"] == pytest.approx(losses[stop], rel=1e-5)
    training.model.load_state_dict(states[stop])
    loaded.model.load_state_dict(states[stop])
    stopped = flatness.measures(loaded, 0.05)
    for name in MEASURES:
        assert stopped[name] == pytest.approx(found[name], rel=1e-3), name
    metrics = training._evaluate(training.data.splits)
    assert found["score"] == pytest.approx(100 * metrics["heldout"]["accuracy"])


def test_trained_to_its_own_end_a_run_has_its_own_measures_and_score(store, cells):
    run = store.run(cells[0].specs[0])
    settings = {"samples": 24, "sam_rho": 0.05, "threads": 1}
    end = flatness.measure([run], **settings)
    share = end["loss"] / run.record["chance"]["loss"]
    # a run that ends above the target is left out, by however little
    assert flatness.measure([run], **settings, matched_loss=share - 1e-4) == {
        "loss": pytest.approx(end["loss"]),
        "epoch": None,
    }
    score = flatness.held_out_score(run, load_run(run, 24))
    assert score == pytest.approx(100 * next(iter(run.metrics.values()))["accuracy"])


def test_findings_have_a_row_per_measure_and_method_and_judge_the_claim(profile, frame):
    findings = flatness.analyse(profile, frame)
    tables = {table.name: table.frame for table in findings.tables}
    assert list(tables) == ["", "measures", "matched", "layers"]
    assert list(tables[""].index.unique("measure")) == list(MEASURES)
    assert len(tables[""]) == 3 * len(MEASURES)
    assert list(tables["measures"]["method"]) == list(tables["layers"].columns) == METHODS
    assert set(tables["measures"]["converged"]) == {"2/2"}
    assert len(tables["layers"]) == 4
    assert tables["layers"].notna().all(axis=None)
    (claim,) = findings.claims
    assert claim.claim.id == "C28"
    assert [part.contextual for part in claim.parts] == [False, *[True] * 4]
    # some methods of 96 rows that were not learnt are no ground for a verdict
    assert claim.verdict == "not testable here"
    assert [drawing.name for drawing in findings.figures] == ["", "matched"]
    assert len([axes for axes in findings.figures[0].figure.axes if axes.get_title()]) == len(SHOWN)
    assert "sharpness and accuracy, all runs" in findings.found


def test_what_was_not_measured_is_named_and_the_others_stand(profile, frame):
    lost = frame.copy()
    lost.loc[(lost["method"] == "LAMB") & (lost["kind"] == MEASUREMENT), "status"] = "failed"
    above = (lost["method"] == "baseline") & (lost["seed"] == 1) & (lost["kind"] == MATCHED)
    lost.loc[above, [*MEASURES, "epoch", "hvps"]] = None
    tables = {table.name: table for table in flatness.analyse(profile, lost).tables}
    assert "LAMB" not in set(tables["measures"].frame["method"])
    assert any("2 failed" in note for note in tables["measures"].notes)
    assert any(note.endswith("are left out: baseline (seed 1).") for note in tables["matched"].notes)
    assert tables["matched"].frame.set_index("method")["seeds"]["baseline"] == 1
    nothing = frame[frame["kind"] == RUN].drop(columns=[*MEASURES, *flatness.EVIDENCE, *flatness.LISTS])
    assert flatness.analyse(profile, nothing) == flatness.Findings()
    ends = frame[frame["kind"] != MATCHED]
    assert [drawing.name for drawing in flatness.analyse(profile, ends).figures] == [""]


def test_a_monotone_relation_is_a_correlation_of_minus_one():
    found = c28(made_up())
    assert found.parts[0].estimate.value == pytest.approx(-1)
    assert found.verdict == "supported"


def test_a_method_without_any_relation_within_shows_in_the_part_on_seeds():
    parts = {part.statement: part for part in c28(made_up(within=0.3)).parts}
    assert parts["sharpness and accuracy, all runs"].verdict == "supported"
    within = parts["sharpness and accuracy, seeds within methods"]
    assert within.verdict == "undecided"
    assert within.contextual


def test_sharpness_that_is_a_matter_of_loss_shows_when_loss_is_given_and_at_matched_loss():
    frame, luck = made_up(within=0.3), np.random.default_rng(0)
    frame["loss"] = 0.01 * np.log(frame[LARGEST]) + 0.1 + 0.002 * luck.normal(size=len(frame))
    matched = frame["kind"] == MATCHED
    frame.loc[matched, LARGEST] = luck.permutation(frame.loc[matched, LARGEST])
    values = {part.statement.partition(", ")[2]: part.estimate.value for part in c28(frame).parts}
    assert values["all runs"] < -0.8
    assert abs(values["all runs, given loss"]) < 0.6
    assert abs(values["all runs, at matched loss"]) < 0.6


def test_a_setting_at_the_end_of_its_grid_is_no_objection_but_a_diverged_run_is():
    assert c28(made_up().assign(interior=False)).verdict == "supported"
    frame = made_up()
    frame.loc[0, ["status", "score"]] = "diverged", np.nan
    assert [gate.name for gate in c28(frame).failed] == ["arms run"]
