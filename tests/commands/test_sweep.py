"""`scala-lab sweep` from a grid to its page: killed and resumed, added to, tracked; mistakes leave nothing."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest

from scala_lab import load_runs, run_grid
from scala_lab.cli import main
from scala_lab.config import RunSpec
from scala_lab.sweep.frame import TIMINGS
from scala_lab.sweep.grid import Grid, SweepFolder
from scala_lab.sweep.local import LocalPool
from tests.command_line import flags, refuse, snapshot
from tests.processes import ROOT, group_alive, started, wait_until
from tests.tiny import WORDS, save_tiny_model

pytestmark = pytest.mark.long

SETTINGS = {
    **{"task": "reviews.csv", "text_columns": ("text",), "label_column": "stars", "model": "./model"},
    **{"batch_size": 8, "micro_batch": 8, "epochs": 2, "device": "cpu"},
}
GRID = ("method=plain,scala-effective,two-draws", "lr=0.01,1e30", "delay=1")
ROWS = {"tuning_samples": 8, "heldout_samples": 8}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty current folder with a model and rows whose labels are words."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "model", dropout=0.1)
    rng = random.Random(0)
    with Path("reviews.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "stars"])
        for row in range(64):
            writer.writerow([" ".join(rng.choices(WORDS, k=rng.randint(5, 12))), ("bad", "very good")[row % 2]])
    return tmp_path


def sweep(*grid: str, out: object = "out", **more: object) -> list[str]:
    axes = ["--grid", *grid] if grid else []
    return ["sweep", *axes, *flags(**SETTINGS | {"out": out} | more)]


def untimed(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.drop(columns=list(TIMINGS))


def trained(folder: str | Path = "out") -> dict[str, int]:
    """When each run's record was last written."""
    return {file.parent.name: file.stat().st_mtime_ns for file in Path(folder).glob("store/runs/*/run.json")}


def status(name: str, folder: str = "out") -> str:
    return json.loads(Path(folder, "store/runs", name, "run.json").read_text())["status"]


def ended(folder: str) -> int:
    return sum(status(name, folder) != "running" for name in trained(folder))


def test_a_sweep_that_is_killed_and_given_again_ends_like_one_that_was_not(here, capfd):
    """kill -9 of all its processes in the middle: one run, which this test has locked, is certainly left."""
    command = sweep(*GRID, seeds=2, **ROWS)
    fixed = RunSpec.of(**SETTINGS, **ROWS)
    axes = {"method": ["plain", "scala-effective", "two-draws"], "lr": [0.01, 1e30], "delay": [1]}
    declared = SweepFolder(Path("out")).add(Grid.of(fixed, axes, 2))
    declared.write()
    with declared.store.lock(declared.cells()[-1].item) as acquired:
        assert acquired
        with started([sys.executable, "-m", "scala_lab", *command], cwd=here, env={"PYTHONPATH": str(ROOT)}) as process:
            wait_until(lambda: process.ended or ended("out") >= 2, "no run ends", process)
            os.killpg(process.pid, signal.SIGKILL)
            process.process.wait()
            wait_until(lambda: not group_alive(process.pid), "its processes go on", process)
    assert 2 <= ended("out") < 12
    before = {name: time for name, time in trained("out").items() if status(name) != "running"}
    assert main(command) == 0
    assert before.items() <= trained("out").items(), "what has ended is not trained again"
    capfd.readouterr()
    resumed = load_runs("out")
    assert len(resumed) == 12
    assert main([word if word != "out" else "undisturbed" for word in command]) == 0
    out, err = capfd.readouterr()
    pd.testing.assert_frame_equal(untimed(resumed), untimed(load_runs("undisturbed")))
    assert Path("out/figures/heat-map.svg").read_bytes() == Path("undisturbed/figures/heat-map.svg").read_bytes()
    assert err.count("Left out for methods that have no such option: delay (plain).") == 1
    assert "chosen on tuning rows, reported on held-out rows" in out
    assert resumed["status"].value_counts().to_dict() == {"finished": 6, "diverged": 6}
    assert resumed[resumed["lr"] == 1e30]["error"].notna().all()


def test_python_trains_what_the_command_trains(here, capfd):
    assert main(sweep("method=lamb,plain", "lr=0.01,0.02", seed=3)) == 0
    axes = {"method": ["lamb", "plain"], "lr": [0.01, 0.02]}
    runs = run_grid(axes, out="python", seeds=[3], executor=LocalPool(1), **SETTINGS)
    pd.testing.assert_frame_equal(untimed(runs), untimed(load_runs("out")))
    assert not Path("python/index.html").exists()
    assert main(["report", "python"]) == 0
    assert Path("python/runs.csv").is_file()

    stars = json.loads(Path("out/store/runs", runs["name"][0], "checkpoint", "config.json").read_text())["id2label"]
    assert sorted(stars.values()) == ["bad", "very good"]


def test_a_file_says_the_same_as_flags_which_override_it(here):
    text = 'task = "reviews.csv"\ntext_columns = ["text"]\nlabel_column = "stars"\nmodel = "./model"\nseeds = [5]\n'
    text += "micro_batch = 8\nepochs = 9\n[machine]\ndevice = 'cpu'\n[grid]\nlr = [0.01, 0.5]\nbatch_size = [8, 16]\n"
    Path("grid.toml").write_text(text)
    assert main(["sweep", "grid.toml", "--grid", "lr=0.02", "--epochs", "2", "--method", "plain", "--out", "out"]) == 0
    runs = load_runs("out")
    assert runs[["batch_size", "lr", "seed", "epochs", "method"]].values.tolist() == [
        [8, 0.02, 5, 2, "plain"],
        [16, 0.02, 5, 2, "plain"],
    ]


def test_a_sweep_is_added_to_in_its_own_settings(here, capfd):
    assert main(sweep("lr=0.01", method="plain", seeds=1)) == 0
    first = trained()
    assert main(["sweep", "--grid", "lr=0.02", "--grid", "batch-size=16", "--out", "out"]) == 0
    assert main(["sweep", "--seeds", "2", "--out", "out"]) == 0
    assert first.items() <= trained().items()
    runs = load_runs("out")
    assert list(runs.columns[:3]) == ["lr", "batch_size", "seed"]
    assert runs[["lr", "batch_size", "seed"]].values.tolist() == [[0.01, 8, 0], [0.02, 16, 0], [0.02, 16, 1]]
    assert set(runs["method"]) == {"plain"}
    now = snapshot(Path("out"))
    assert main(["sweep", "--out", "out", "--rows", "batch-size", "--columns", "lr"]) == 0
    assert {name for name, content in snapshot(Path("out")).items() if now[name] != content} <= {
        "sweep.json",
        "index.html",
    }
    refuse(capfd, ["sweep", "--epochs", "3", "--out", "out"], "other fixed settings (epochs 2 -> 3)", "--grid epochs=3")
    refuse(capfd, ["sweep", "--rows", "epochs", "--out", "out"], "--rows epochs is no axis of this sweep: valid:")


def test_dry_run_counts_and_leaves_nothing(here, capsys):
    before = snapshot(here)
    assert main([*sweep(*GRID, seeds=2, **ROWS), "--dry-run"]) == 0
    assert snapshot(here) == before
    rows = {
        cells[0]: cells[1:]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) > 4
    }
    # 64 rows, of which 6 are to evaluate and 16 kept apart: 42 in batches of 8 are 6 steps an epoch
    assert rows["plain"][:5] == ["4", "0", "8", "0", "48"]
    assert rows["scala-effective"][0] == rows["two-draws"][0] == "4"
    assert rows["all, shared runs once"][0] == "12"


FAKE_TRACKER = """
import json, os
class Settings(dict):
    pass
class Run:
    def __init__(self, id): self.id, self.summary = id, {}
    def log(self, numbers, step): write(self.id, step, numbers)
    def finish(self, exit_code): write(self.id, exit_code, self.summary)
def init(**options):
    write(options["id"], options["name"], options["config"])
    if options["config"]["seed"] == 1:
        raise OSError("no route to host")
    return Run(options["id"])
def write(*line):
    with open(os.environ["FAKE_TRACKER"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


def test_a_failed_run_is_a_row_and_a_tracker_that_fails_is_none(here, capfd, monkeypatch):
    """One model of two is broken, and the tracker does not take the runs of one seed of two."""
    shutil.copytree("model", "broken")
    weights = Path("broken/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    Path("fake/wandb").mkdir(parents=True)
    Path("fake/wandb/__init__.py").write_text(FAKE_TRACKER)
    monkeypatch.syspath_prepend(str(here / "fake"))
    monkeypatch.setenv("PYTHONPATH", f"{here / 'fake'}:{ROOT}")
    monkeypatch.setenv("FAKE_TRACKER", str(here / "tracked"))
    command = sweep("model=./model,./broken", method="plain", lr=0.01, seeds=2, log_to="wandb")
    assert main(command) == 1
    _, err = capfd.readouterr()
    assert "scala-lab: 2 runs failed; runs.csv says why, --retry-failed tries again" in err
    assert "trackers did not get all of 1 runs (wandb: OSError: no route to host)" in err
    runs = load_runs("out")
    assert runs[["model", "status"]].values.tolist() == [["./model", "finished"]] * 2 + [["./broken", "failed"]] * 2
    assert runs["error"][2:].str.contains("broken").all()
    assert pd.read_csv("out/best.csv")["model"].tolist() == ["./model"]
    tracked = [json.loads(line) for line in Path("tracked").read_text().splitlines()]
    (name,) = runs[(runs["status"] == "finished") & (runs["seed"] == 0)]["name"]
    log = [json.loads(line) for line in Path("out/store/runs", name, "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in tracked if isinstance(line[1], int) and "train/loss" in line[2]]
    assert [(step, numbers["train/loss"]) for _, step, numbers in steps] == [
        (line["step"], line["loss"]) for line in log
    ]
    assert tracked[-1][1:] == [0, {"status": "finished"}]

    shutil.rmtree("broken")
    shutil.copytree("model", "broken")
    before = trained()
    assert main([word for word in command if word not in ("--log-to", "wandb")]) == 1
    assert trained() == before
    assert main([*command, "--retry-failed"]) == 0
    assert load_runs("out")["status"].tolist() == ["finished"] * 4


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["sweep"], "sweep needs --out, the folder of its runs and results"),
        (sweep(), "sweep needs a grid: --grid lr=1e-4,3e-4 ..., or a TOML file with a table [grid]"),
        (sweep("lr"), "--grid takes name=a,b,c, not 'lr'"),
        (sweep("=3"), "--grid takes name=a,b,c, not '=3'"),
        (sweep("lr="), "--lr has an empty value in --grid"),
        (sweep("lr=0.1,,0.2"), "--lr has an empty value in --grid"),
        (sweep("lr=0.1", "lr=0.2"), "--grid has lr twice: give all of its values at once"),
        (sweep("batch-sise=8,16"), "--grid: unknown setting 'batch-sise': did you mean 'batch_size'?"),
        (sweep("batch_size=8,many"), "--batch-size must be a whole number, not 'many'"),
        (sweep("lr=0.1,fast"), "--lr must be a number, not 'fast'"),
        (sweep("optimizer=lamp"), "--optimizer must be one of adamw, lamb, ngd, not 'lamp'"),
        (sweep("regression=maybe"), "--regression must be one of false, true, not 'maybe'"),
        (sweep("method=lamb,scla"), "unknown method 'scla': did you mean 'scala'?"),
        (
            sweep("rho=0.1,0.2", method="lamb"),
            "no method of this grid (lamb) has the option 'rho'; methods that have it",
        ),
        (sweep("method=lamb,scala", "delay=1,7"), "method=scala delay=7: method 'scala' starts its noise after"),
        (sweep("delay=1.9", max_steps=10), "delay=1.9: method 'scala' starts its noise after --delay 1.9 epochs"),
        (sweep("batch_size=8,0", method="lamb"), "batch_size=0: --batch-size must be at least 1, not 0"),
        (sweep("lr=0.1", epochs=0), "--epochs must be at least 1, not 0"),
        (sweep("lr=nan"), "--lr must be a positive number, not nan"),
        (sweep("seed=0,1", seeds=2), "the seeds are given twice, as an axis and by --seeds"),
        (sweep("lr=0.1", seeds=0), "--seeds must be at least 1, not 0"),
        (sweep("lr=0.1", seeds="few"), "--seeds must be a whole number, not 'few'"),
        (sweep("data_dir=a,b"), "data_dir cannot be an axis"),
        (
            sweep("task=a/x.csv,b/x.csv", method="lamb"),
            "task a/x.csv and b/x.csv would be the same run: rename one of them",
        ),
        (sweep("task=reviews.csv,none.csv", method="lamb"), "none.csv"),
        (sweep("model=./model,./nowhere", method="lamb"), "model folder ./nowhere does not exist"),
        (sweep("train_samples=8,99", method="lamb"), "--train-samples 99: reviews.csv has"),
        (sweep("label_column=stars,rating", method="lamb"), "rating"),
        (
            sweep("lr=0.1,0.2", method="lamb", rows="batch_size"),
            "--rows batch_size is no axis of this sweep: valid: lr",
        ),
        (sweep("lr=0.1,0.2", "epochs=1,2", method="lamb", rows="lr", columns="lr"), "--rows and --columns are both lr"),
        (sweep("lr=0.1,0.2", method="lamb", best_for="methd"), "--best-for methd is no axis of this sweep"),
        (sweep("lr=0.1,0.2", method="lamb", metric="f2"), "--metric f2 is no metric of reviews.csv"),
        (sweep("lr=0.1", processes=0), "--processes must be at least 1, not 0"),
        (sweep("lr=0.1", executor="cloud"), "--executor must be one of local, slurm, not 'cloud'"),
        (sweep("lr=0.1", method="lamb", executor="slurm", sbatch="long"), "--sbatch takes name=value, not 'long'"),
        (sweep("lr=0.1", log_to="wandbb"), "--log-to must be one of mlflow, tensorboard, wandb, not 'wandbb'"),
        (sweep("lr=0.1", out="reviews.csv"), "reviews.csv is a file: a sweep is a folder"),
        (sweep("lr=0.1", out="model"), "model is not empty and holds no sweep.json: choose another --out"),
        (["sweep", "none.toml", "--out", "out"], "config file none.toml does not exist"),
        (["sweep", "one.toml", "--out", "out"], "one.toml: lr must be a number, not 'fast'"),
        (["sweep", "two.toml", "--out", "out"], "two.toml: unknown setting 'batch_sise': did you mean 'batch_size'?"),
        (["sweep", "three.toml", "--out", "out"], "three.toml: grid must be a table, not 3"),
        (["sweep", "four.toml", "--out", "out"], "four.toml: unknown key 'epoch': did you mean 'epochs'?"),
        (["sweep", "five.toml", "--out", "out"], "five.toml: seed must be a whole number, not 0.5"),
    ],
)
def test_mistake_gets_one_sentence_and_leaves_nothing(here, capfd, args, sentence):
    Path("one.toml").write_text("[grid]\nlr = [0.1, 'fast']\n")
    Path("two.toml").write_text("[grid]\nbatch_sise = [8, 16]\n")
    Path("three.toml").write_text("grid = 3\n")
    Path("four.toml").write_text("epoch = 2\n[grid]\nlr = [0.1]\n")
    Path("five.toml").write_text("seeds = [0.5]\n[grid]\nlr = [0.1]\n")
    refuse(capfd, args, sentence)
