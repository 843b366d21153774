"""A run killed at any moment and resumed ends at the same bits as one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.tiny import save_tiny_model, write_rows

STEPS = 39  # 3 epochs of 200 rows in batches of 16


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(folder / "model", dropout=0.1), write_rows(folder / "rows.csv", 200)


def command(inputs, out, workers, *more):
    model, rows = inputs
    settings = {
        "task": rows,
        "label-column": "label",
        "eval-file": rows,
        "model": model,
        "method": "scala-effective",
        "delay": 0.5,
        "epochs": 3,
        "batch-size": 16,
        "micro-batch": 4,
        "workers": workers,
        "threads": 1,
        "save-every": 0,
        "lr": 0.01,
        "out": out,
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "scala_lab", "train", *flags, "--text-columns", "text", *more]


def steps_logged(out: Path) -> list[int]:
    file = out / "metrics.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.exists() else []


def kill_after(inputs, out, workers, steps, *more):
    """Start a run, kill -9 its first process once it has logged that many steps, and wait until no worker is left."""
    process = subprocess.Popen(command(inputs, out, workers, *more), stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    while len((out / "metrics.jsonl").read_bytes().splitlines() if (out / "metrics.jsonl").exists() else []) < steps:
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while group_alive(process.pid):
        assert time.monotonic() < deadline, "workers outlive their launcher"
        time.sleep(0.05)


def group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_resumed_run_ends_at_the_same_bits(inputs, tmp_path, workers):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(inputs, whole, workers), check=True)
    kill_after(inputs, broken, workers, random.randrange(1, STEPS - 12))
    kill_after(inputs, broken, workers, len(steps_logged(broken)) + random.randrange(1, 8), "--resume")
    assert json.loads((broken / "run.json").read_text())["status"] == "running"
    # what a kill in the middle of a line leaves behind
    with (broken / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 7')
    subprocess.run(command(inputs, broken, workers, "--resume"), check=True)

    for out in (whole, broken):
        assert steps_logged(out) == list(range(1, STEPS + 1))
        assert json.loads((out / "run.json").read_text())["status"] == "finished"
    left, right = (load_file(out / "checkpoint" / "model.safetensors") for out in (whole, broken))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.equal(right[name]), name
    records = [json.loads((out / "run.json").read_text()) for out in (whole, broken)]
    assert records[0]["metrics"] == records[1]["metrics"]
    assert records[0]["counts"] == records[1]["counts"]
    lines = [
        [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in text.splitlines()]
        for text in ((out / "metrics.jsonl").read_text() for out in (whole, broken))
    ]
    assert lines[0] == lines[1]
