"""`load_runs`: one tidy row per run, from whatever folder holds them."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from scala_lab import load_runs
from scala_lab.config import RunSpec, setting_types
from scala_lab.errors import UserError
from scala_lab.sweep.grid import Grid, SweepFolder
from tests.sweep.pretended import pretend

FIXED = RunSpec.of(task="rows.csv", device="cpu", text_columns=("a", "b"))
AXES = {"method": ["scala", "lamb"], "lr": [0.1, 0.01], "delay": [3]}


def ending(spec: RunSpec) -> dict:
    """One run diverged after a first epoch, one failed, one was not begun."""
    if (spec.recipe.method, spec.optim.lr, spec.seed) == ("lamb", 0.1, 0):
        stale = {"dev": {"accuracy": 0.9}}
        return {
            "status": "diverged",
            "metrics": stale,
            "losses": {"dev": 0.1},
            "best": {"epoch": 1.0, "metrics": stale},
        }
    if (spec.recipe.method, spec.optim.lr, spec.seed) == ("lamb", 0.1, 1):
        return {"status": "failed", "error": "no such file", "timing": None}
    if (spec.recipe.method, spec.optim.lr, spec.seed) == ("lamb", 0.01, 1):
        return {}
    metrics = {"dev": {"accuracy": 0.5 + spec.optim.lr, "f1": None}, "heldout": {"accuracy": 0.25}}
    best = {"epoch": 2.0, "metrics": {"dev": {"accuracy": 0.75}}}
    return {"metrics": metrics, "losses": {"train": 0.5, "dev": 0.6}, "best": best, "noise_start": 3.0}


@pytest.fixture
def sweep(tmp_path) -> SweepFolder:
    sweep = SweepFolder(tmp_path / "sweep1").add(Grid.of(FIXED, AXES, 2))
    pretend(sweep, ending)
    return sweep


def test_a_sweep_has_one_row_a_run_axes_first(sweep):
    runs = load_runs(sweep.folder)
    assert list(runs.columns[:4]) == ["method", "lr", "delay", "seed"]
    assert set(setting_types()) <= set(runs.columns)
    assert runs.columns.is_unique
    found = [tuple(row) for row in runs[["method", "lr", "seed", "status"]].itertuples(index=False)]
    assert found == [
        *(("scala", lr, seed, "finished") for lr in (0.1, 0.01) for seed in (0, 1)),
        *(("lamb", 0.1, 0, "diverged"), ("lamb", 0.1, 1, "failed"), ("lamb", 0.01, 0, "finished")),
    ]
    assert runs["delay"].tolist()[:4] == [3.0] * 4
    assert runs["delay"].isna().tolist()[4:] == [True] * 3, "LAMB has no delay"
    first = runs.iloc[0]
    assert (first["dev_accuracy"], first["heldout_accuracy"], first["best_dev_accuracy"]) == (0.6, 0.25, 0.75)
    assert (first["train_loss"], first["dev_loss"], first["noise_start"], first["learning_rate"]) == (
        0.5,
        0.6,
        3.0,
        0.1,
    )
    assert (first["train_rows"], first["steps"], first["train_seconds"]) == (48, 9, 2.0)
    assert (first["text_columns"], first["task"], first["optimizer"]) == ("a b", "rows.csv", "lamb")
    assert (sweep.folder / first["folder"] / "run.json").is_file()


def test_what_did_not_finish_says_why_and_has_no_metrics(sweep):
    runs = load_runs(sweep.folder)
    lost = runs[runs["status"] != "finished"]
    assert lost["error"].tolist() == ["the loss is not finite at step 9", "no such file"]
    assert runs[runs["status"] == "finished"]["error"].isna().all()
    measured = [name for name in runs.columns if name.endswith(("_accuracy", "_f1", "_loss")) or name == "best_epoch"]
    assert len(measured) == 7
    assert lost[measured].isna().all(axis=None)


def test_columns_have_types_whatever_is_missing(sweep):
    runs = load_runs(sweep.folder)
    kinds = {"lr": "float64", "delay": "float64", "seed": "Int64", "max_steps": "Int64", "regression": "boolean"}
    kinds |= {"method": "string", "error": "string", "steps": "Int64", "dev_accuracy": "float64", "dev_f1": "float64"}
    assert {name: str(runs[name].dtype) for name in kinds} == kinds
    assert "object" not in set(map(str, runs.dtypes))


def test_all_folders_with_the_same_runs_give_the_same_rows(sweep, tmp_path):
    """A store, a run folder's parents, a report: in the order of what differs, where no sweep says another."""
    expected = load_runs(sweep.folder).sort_values("id", ignore_index=True)
    report = tmp_path / "report"
    report.mkdir()
    files = sorted(sweep.store.root.glob("runs/*/run.json"))
    (report / "runs.jsonl").write_text("".join(json.dumps(json.loads(file.read_text())) + "\n" for file in files))
    for folder in (sweep.store.root, sweep.store.root / "runs", tmp_path, report):
        if folder == tmp_path:
            (report / "runs.jsonl").rename(tmp_path / "elsewhere")
        runs = load_runs(folder)
        assert runs["method"].tolist() == ["lamb"] * 3 + ["scala"] * 4
        runs = runs.sort_values("id", ignore_index=True)[expected.columns]
        pd.testing.assert_frame_equal(runs.drop(columns="folder"), expected.drop(columns="folder"))
        if folder == tmp_path:
            (tmp_path / "elsewhere").rename(report / "runs.jsonl")
    one = load_runs(files[0].parent)
    assert one["id"].tolist() == [json.loads(files[0].read_text())["id"]]
    assert one["folder"].tolist() == ["."]


def test_states_and_checkpoints_are_not_looked_through(sweep):
    run = next(sweep.store.root.glob("runs/*"))
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "run.json").write_text("{")
    (run.parent / ".half").mkdir()
    (run.parent / ".half" / "run.json").write_text("{")
    assert len(load_runs(sweep.folder)) == 7


def test_folders_without_runs_and_damaged_records_are_named(sweep, tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_runs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no runs"):
        load_runs(tmp_path / "empty")
    file = next(sweep.store.root.glob("runs/*/run.json"))
    with pytest.raises(UserError, match="is no folder"):
        load_runs(file)
    file.write_text("{")
    with pytest.raises(UserError, match=r"run.json is damaged or no run record of this version"):
        load_runs(sweep.folder)
