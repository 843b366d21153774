"""Runs of a sweep that share plain steps: these are trained once, and everything else is as without branches."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from scala_lab.sweep import cost
from scala_lab.sweep.cells import Cell, Job, find_trunks
from scala_lab.sweep.cost import estimate
from scala_lab.sweep.engine import carry_out, run_sweep
from scala_lab.sweep.store import RunStore
from scala_lab.training.train import train
from scala_lab.training.trainer import Training
from tests.sweep.measures import tiny_spec
from tests.sweep.test_engine import Here


@pytest.fixture
def steps(monkeypatch):
    """The steps that are trained, as they happen."""
    done, train_step = [], Training._train_step

    def count(self, step):
        done.append((self.spec.run_id, step))
        return train_step(self, step)

    monkeypatch.setattr(Training, "_train_step", count)
    return done


@pytest.fixture
def arms(inputs):
    """LAMB and runs that differ from it from step 3, 3 and 5 of 6 on; and two that share nothing."""
    lamb, early, late = (
        tiny_spec(*inputs, method="lamb"),
        [tiny_spec(*inputs, delay=1.0), tiny_spec(*inputs, method="gaussian", delay=1.0)],
        tiny_spec(*inputs, method="rdrop", delay=1.4),
    )
    return [*early, lamb, late, tiny_spec(*inputs, method="freelb"), tiny_spec(*inputs, method="lamb", seed=1)]


def assert_as_from_scratch(store: RunStore, specs, tmp_path) -> None:
    for spec in specs:
        run, whole = store.run(spec), train(spec, tmp_path / f"whole-{spec.run_id}")
        left, right = (load_file(one.checkpoint / "model.safetensors") for one in (run, whole))
        assert all(tensor.equal(right[name]) for name, tensor in left.items())
        assert (run.metrics, run.record["best"]) == (whole.metrics, whole.record["best"])
    assert not list(store.root.glob("runs/*/trunk")), "kept states are deleted"


def test_shared_steps_are_trained_once(arms, tmp_path, steps, monkeypatch):
    monkeypatch.setattr(cost, "run_seconds", lambda *_: 1.0)
    store, executor = RunStore(tmp_path / "store"), Here()
    records = run_sweep(map(Cell, arms), store, executor)
    lamb = arms[2].run_id
    assert len(steps) == len(set(steps)) == 6 * 6 - 3 - 3 - 5
    assert len(steps) == estimate(map(Cell, arms), store).steps
    assert estimate(map(Cell, arms), store).shared_epochs == pytest.approx(11 / 3)
    for spec, first in ((arms[0], 3), (arms[1], 3), (arms[3], 5)):
        assert records.runs[spec.run_id]["trunk"] == {"id": lamb, "step": first}
        assert executor.order.index(lamb) < executor.order.index(spec.run_id)
    assert [records.runs[spec.run_id]["trunk"] for spec in (arms[2], arms[4], arms[5])] == [None] * 3
    assert_as_from_scratch(store, arms, tmp_path)


def test_run_that_differs_last_is_the_trunk_where_lamb_is_not_to_be_trained(arms, tmp_path, steps):
    """LAMB ended in an earlier sweep, which kept no state for these."""
    store = RunStore(tmp_path / "store")
    run_sweep([Cell(arms[2])], store, Here())
    steps.clear()
    records = run_sweep(map(Cell, arms[:4]), store, Here())
    assert len(steps) == 6 + 3 + 3
    assert [records.runs[spec.run_id]["trunk"] for spec in arms[2:4]] == [None, None]
    for spec in arms[:2]:
        assert records.runs[spec.run_id]["trunk"] == {"id": arms[3].run_id, "step": 3}
    assert_as_from_scratch(store, arms[:4], tmp_path)


class Killed(Exception):
    """The end of a sweep."""


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_sweep_that_was_stopped_goes_on_with_what_its_trunk_kept(arms, tmp_path, steps, jobs):
    class Stopped(Here):
        def endings(self, seconds):
            if len(self.order) == jobs:
                raise Killed
            return super().endings(seconds)

    store = RunStore(tmp_path / "store")
    with pytest.raises(Killed):
        run_sweep(map(Cell, arms[:4]), store, Stopped())
    assert [folder.name for folder in sorted(store.root.glob("runs/lamb*/trunk/*"))] == ["00000003", "00000005"]
    run_sweep(map(Cell, arms[:4]), store, Here())
    assert len(steps) == 4 * 6 - 3 - 3 - 5
    assert_as_from_scratch(store, arms[:4], tmp_path)


def test_states_that_nobody_deleted_are_deleted_by_the_next_sweep(arms, tmp_path):
    """On a cluster jobs go on when the sweep is killed."""
    store = RunStore(tmp_path / "store")
    trunk = store.run_folder(arms[2])
    carry_out(Job(arms[2].resolved(), store.root, keep_states=(1.0,)))
    carry_out(Job(arms[0].resolved(), store.root, trunk=trunk))
    run_sweep([Cell(arms[2])], store, Here())
    assert (trunk / "trunk").is_dir(), "another sweep may need them"
    executor = Here()
    run_sweep([Cell(arms[2]), Cell(arms[0])], store, executor)
    assert executor.order == []
    assert_as_from_scratch(store, [arms[0], arms[2]], tmp_path)


def test_branch_without_a_kept_state_is_trained_from_scratch(arms, tmp_path, monkeypatch, steps):
    """The trunk failed before; another sweep deletes the states just before they are read; or they are damaged."""
    from scala_lab.training import run_dir

    store, branch = RunStore(tmp_path / "store"), arms[0]
    with monkeypatch.context() as patch:
        patch.setattr("scala_lab.training.trainer.load_model", None)
        carry_out(Job(arms[2].resolved(), store.root, keep_states=(1.0,)))
    carry_out(Job(branch.resolved(), store.root, trunk=store.run_folder(arms[2])))
    assert store.record(branch)["trunk"] is None
    assert_as_from_scratch(store, [branch], tmp_path)

    other = RunStore(tmp_path / "other")
    trunk = other.run_folder(arms[2])
    carry_out(Job(arms[2].resolved(), other.root, keep_states=(1.0,)))
    check = run_dir.check_trunk

    def delete_first(*arguments):
        (trunk / "trunk").rename(tmp_path / "gone")
        check(*arguments)

    monkeypatch.setattr(run_dir, "check_trunk", delete_first)
    carry_out(Job(branch.resolved(), other.root, trunk=trunk))
    assert (other.record(branch)["status"], other.record(branch)["trunk"]) == ("finished", None)

    monkeypatch.setattr(run_dir, "check_trunk", check)
    (tmp_path / "gone").rename(trunk / "trunk")
    (trunk / "trunk/00000003/position.json").unlink()
    also = arms[1]
    carry_out(Job(also.resolved(), other.root, trunk=trunk))
    assert (other.record(also)["status"], other.record(also)["trunk"]) == ("finished", None)


def test_diverged_trunk_keeps_what_was_sound(inputs, tmp_path, monkeypatch):
    update = Training.update

    def break_lamb(self, step):
        norm, rate = update(self, step)
        return (float("nan"), rate) if self.spec.recipe.method == "lamb" and step == 4 else (norm, rate)

    monkeypatch.setattr(Training, "update", break_lamb)
    lamb, branch = tiny_spec(*inputs, method="lamb"), tiny_spec(*inputs, delay=1.0)
    store = RunStore(tmp_path / "store")
    records = run_sweep([Cell(branch), Cell(lamb)], store, Here())
    assert records.runs[lamb.run_id]["status"] == "diverged"
    assert records.runs[branch.run_id]["trunk"] == {"id": lamb.run_id, "step": 3}
    assert_as_from_scratch(store, [branch], tmp_path)


def test_trunk_is_the_run_with_the_most_plain_steps(arms):
    runs = {spec.run_id: spec.resolved() for spec in arms}
    early, also, lamb, late, *_ = runs
    assert find_trunks(runs) == {early: lamb, also: lamb, late: lamb}
    del runs[lamb]
    assert find_trunks(runs) == {early: late, also: late}
    del runs[late]
    assert find_trunks(runs) == {also: early}
