"""`scala-lab train` from the user's side: what it shows, keeps, goes on with, and how it ends."""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from scala_lab.cli import main
from tests.command_line import flags, interrupted_after, snapshot, strict_json, train_flags
from tests.tiny import write_rows

STEPS = 9
FILES = [".lock", "checkpoint", "metrics.jsonl", "predictions.npz", "run.json"]


@pytest.fixture
def run(tmp_path, monkeypatch, tiny_bert):
    """Train with some settings changed; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    rows = write_rows(tmp_path / "rows.csv", 48)
    return lambda **changes: main(train_flags(tiny_bert, rows, **changes))


def record(out: str = "out") -> dict:
    return strict_json(Path(out, "run.json").read_text())


def lines(out: str = "out") -> list[dict]:
    return [strict_json(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]


def test_run_folder_holds_what_it_promises(run, capfd):
    assert run(heldout_samples=8, tuning_samples=4, seed=3) == 0
    found = record()
    assert found["status"] == "finished"
    assert found["spec"]["batches"] == {"batch_size": 16, "micro_batch": 8}
    assert found["spec"]["seed"] == 3
    assert found["samples"] == {"train": 36, "heldout": 8, "tuning": 4, "dev": 48}
    assert set(found["metrics"]) == {"dev", "heldout", "tuning"}
    assert set(found["losses"]) == {"train", *found["metrics"]}
    assert found["chance"]["score"] >= 0.5
    assert found["chance"]["loss"] <= math.log(2)
    right = np.unpackbits(np.load("out/predictions.npz")["heldout/correct"], count=8)
    assert right.mean() == found["metrics"]["heldout"]["accuracy"]
    assert 0 <= found["metrics"]["dev"]["accuracy"] <= 1
    assert found["best"]["metrics"]["dev"]["accuracy"] >= found["metrics"]["dev"]["accuracy"]
    assert found["steps"] == found["steps_done"] == STEPS
    assert found["timing"]["samples_per_second"] > 0
    assert {"clean forward", "backward", "optimizer"} <= set(found["timing"]["phases"])
    assert sum(found["timing"]["phases"].values()) <= found["timing"]["train_seconds"] * 1.05
    assert found["counts"]["skipped_noise"] == 0
    assert found["environment"]["threads"] == 1
    assert {"torch", "transformers"} <= set(found["environment"]["packages"])
    assert [line["step"] for line in lines()] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines() if "eval" in line] == [3, 6, 9], "evaluated after every epoch"
    assert not Path("out/state").exists()
    assert sorted(path.name for path in Path("out").iterdir()) == FILES


def test_results_go_to_stdout_and_progress_to_stderr(run, capfd):
    assert run() == 0
    out, err = capfd.readouterr()
    assert "finished" in out
    assert "accuracy" in out
    assert "out/checkpoint" in out
    assert "epoch" not in err.splitlines()[0].removeprefix("epoch"), "one line per epoch, not wrapped"
    assert [line.split()[:2] for line in err.splitlines()] == [["epoch", "1"], ["epoch", "2"], ["epoch", "3"]]


def test_long_paths_stay_whole_in_a_pipe(run, capfd):
    out = "/".join(["a" * 60] * 3)
    assert run(out=out, epochs=1) == 0
    assert f"{out}/checkpoint" in capfd.readouterr().out


def test_finished_run_is_shown_and_not_trained_again(run, capfd):
    assert run() == 0
    first = capfd.readouterr().out
    before, written = snapshot(Path("out")), Path("out/checkpoint/model.safetensors").stat().st_mtime_ns
    for more in ({}, {"resume": True}):
        assert run(**more) == 0
        out, err = capfd.readouterr()
        assert "not trained again" in out.splitlines()[0]
        assert out.splitlines()[1:] == first.splitlines(), "the same summary"
        assert err == ""
    assert snapshot(Path("out")) == before
    assert Path("out/checkpoint/model.safetensors").stat().st_mtime_ns == written


def test_default_folder_is_named_after_the_run(run):
    assert run(out=None, epochs=1) == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("lamb-rows-b16-s0-")
    assert record(str(folder))["name"] == folder.name


def test_resume_alone_goes_on_with_the_stored_settings(run, capfd):
    settings = {"lr": 0.003, "seed": 5, "dropout": 0.1}
    assert run(out="whole", **settings) == 0
    with interrupted_after(5):
        assert run(save_every=0, **settings) == 130
    assert capfd.readouterr().err.endswith("scala-lab: interrupted\n")
    assert record()["status"] == "running"
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    assert record()["spec"] == record("whole")["spec"]
    assert record()["metrics"] == record("whole")["metrics"]
    assert [line["step"] for line in lines()] == list(range(1, STEPS + 1))
    weights = [Path(out, "checkpoint/model.safetensors").read_bytes() for out in ("whole", "out")]
    assert weights[0] == weights[1]


def test_resume_where_nothing_was_saved_starts_again(run):
    with interrupted_after(5):
        assert run() == 130
    assert not Path("out/state").exists()
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    assert [line["step"] for line in lines()] == list(range(1, STEPS + 1))


def test_damaged_end_of_the_log_is_cut_off_on_resume(run):
    with interrupted_after(5):
        assert run(save_every=0) == 130
    with Path("out/metrics.jsonl").open("ab") as log:
        log.write(b"\x00\x00\n\xff{]\n" + json.dumps({"stop": 1}).encode() + b"\n")
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    assert [line["step"] for line in lines()] == list(range(1, STEPS + 1))


def test_half_written_files_of_a_killed_run_are_cleared_away(run):
    with interrupted_after(5):
        assert run(save_every=0) == 130
    Path("out/.run.json.abc").write_text("{")
    Path("out/.checkpoint.abc").mkdir()
    Path("out/.checkpoint.abc/model.safetensors").write_text("half")
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == FILES


def test_flags_override_the_config_file(run, tmp_path):
    Path("run.toml").write_text("epochs = 1\nseed = 9\n[optim]\nlr = 0.5\nwarmup = 0.2\n[recipe]\nmethod = 'ngd'\n")
    assert run(config="run.toml", epochs=None, seed=4, method=None) == 0
    spec = record()["spec"]
    assert spec["optim"]["epochs"] == 1
    assert spec["optim"]["warmup"] == 0.2
    assert spec["recipe"]["method"] == "ngd"
    assert spec["optim"]["lr"] == 0.01
    assert spec["seed"] == 4


def test_flag_with_the_default_value_overrides_the_config_file(run):
    Path("run.toml").write_text("epochs = 1\nwarmup = 0.5\n")
    assert run(config="run.toml", epochs=None, warmup=0.1) == 0
    assert record()["spec"]["optim"]["warmup"] == 0.1


@pytest.mark.parametrize("more", [{}, {"max_steps": 1}], ids=["in training", "at the last update"])
def test_diverged_run(run, capfd, more):
    assert run(method="plain", lr=1e30, **more) == 1
    found = record()
    assert found["status"] == "diverged"
    assert not Path("out/checkpoint").exists()
    assert not Path("out/state").exists()
    assert "diverged" in capfd.readouterr().out
    assert [line["step"] for line in lines()] == list(range(1, found["steps_done"] + 1))
    before = snapshot(Path("out"))
    assert run(method="plain", lr=1e30, **more) == 1, "shown again with the same exit code"
    assert "not trained again" in capfd.readouterr().out
    assert snapshot(Path("out")) == before


def test_failed_run_says_so_in_its_record_and_can_go_on(run, monkeypatch):
    from scala_lab.training.trainer import Training

    def fail(self, step):
        raise MemoryError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(Training, "update", fail)
        with pytest.raises(MemoryError):
            run()
    assert record()["status"] == "failed"
    assert record()["error"] == "MemoryError: no more"
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    assert record()["status"] == "finished"
    assert "error" not in record()


FAKE_WORKER = """#!{python}
import json, os, pathlib, signal, sys, time
errors = pathlib.Path(sys.argv[3])
if os.environ["RANK"] == "0":
    time.sleep(60)
if {killed}:
    os.kill(os.getpid(), signal.SIGKILL)
trace = "Traceback (most recent call last):\\nValueError: broken\\n"
fault = {{"sentence": "worker 1: ValueError: broken", "trace": trace}}
(errors / "1.json").write_text(json.dumps(fault))
sys.exit(1)
"""


@pytest.mark.parametrize("killed", [False, True])
def test_failure_of_a_worker_is_said_once_and_stops_the_others(run, capfd, monkeypatch, tmp_path, killed):
    worker = tmp_path / "python"
    worker.write_text(FAKE_WORKER.format(python=sys.executable, killed=killed))
    worker.chmod(0o755)
    monkeypatch.setattr("scala_lab.training.distributed.sys.executable", str(worker))
    monkeypatch.setattr("scala_lab.training.distributed.GRACE_SECONDS", 0.5)
    assert run(workers=2) == 1
    err = capfd.readouterr().err
    assert err.count("scala-lab: error:") == 1
    assert err.count("Traceback") == (0 if killed else 1)
    assert (signal.SIGKILL.name if killed else "ValueError: broken") in err.splitlines()[-1]
    assert "worker 1" in err.splitlines()[-1]
    assert "--resume" in err.splitlines()[-1]


def test_torchrun_workers_say_a_fault_once(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert main(["train", *flags(method="scla")]) == 2
    assert capfd.readouterr().err.count("scala-lab: error:") == 1


def test_infinite_settings_come_back_from_the_record(run):
    """JSON has no infinity; the record must still know the run again."""
    with interrupted_after(5):
        assert run(max_weight_norm="inf", method="scala", delay="inf", delay_rule="settled", save_every=0) == 130
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    assert run(max_weight_norm="inf", method="scala", delay="inf", delay_rule="settled") == 0
    assert record()["spec"]["recipe"]["delay"] == "inf"
