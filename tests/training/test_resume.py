"""A run killed at any moment and resumed, or branched off another, ends at the same bits as one that was left alone."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from scala_lab.cli import main
from tests.command_line import train_flags
from tests.processes import started, wait_until
from tests.tiny import save_tiny_model, write_rows

STEPS = 48  # 3 epochs of 128 rows in batches of 8

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(folder / "model", dropout=0.1), write_rows(folder / "rows.csv", 128)


def command(inputs, out, workers, *more, **changes):
    settings = {"method": "scala-effective", "delay": 0.5, "batch_size": 8, "micro_batch": 4, "save_every": 0}
    settings |= {"workers": workers, "out": out, **changes}
    return [sys.executable, "-m", "scala_lab", *train_flags(*inputs, **settings), *more]


def steps_logged(out: Path) -> list[int]:
    file = out / "metrics.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.exists() else []


def kill_after(inputs, out, workers, steps, *more, **changes):
    """Start a run, kill -9 its first process once it has logged that many steps, and wait until no worker is left."""
    log = out / "metrics.jsonl"

    def far_enough():
        assert not run.ended, run.describe("ended before it could be killed")
        return log.exists() and len(log.read_bytes().splitlines()) >= steps

    with started(command(inputs, out, workers, *more, **changes)) as run:
        wait_until(far_enough, f"the run does not get to step {steps}", run, every=0.002)
        run.kill()


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_resumed_run_ends_at_the_same_bits(inputs, tmp_path, workers):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(command(inputs, whole, workers)[3:]) == 0
    # long before the end: whoever watches may be late on a loaded machine
    kill_after(inputs, broken, workers, random.randrange(1, STEPS // 3))
    if workers == 1:  # a second kill, of a run that was resumed
        kill_after(inputs, broken, workers, len(steps_logged(broken)) + random.randrange(1, STEPS // 6), "--resume")
    assert json.loads((broken / "run.json").read_text())["status"] == "running"
    # what a kill in the middle of a line leaves behind
    with (broken / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 7')
    assert main(command(inputs, broken, workers, "--resume")[3:]) == 0
    assert_same(whole, broken)


@pytest.mark.parametrize("workers", [1, 2])
def test_branch_is_the_run_from_scratch_though_it_and_its_trunk_were_killed(inputs, tmp_path, workers):
    whole, trunk, branch = tmp_path / "whole", tmp_path / "trunk", tmp_path / "branch"
    assert main(command(inputs, whole, workers)[3:]) == 0
    lamb = {"method": "lamb", "delay": None, "keep_states": 0.5}
    start = 8  # t_s is half an epoch
    if workers == 1:  # before the state is kept, and after
        kill_after(inputs, trunk, workers, random.randrange(1, start), **lamb)
    kill_after(inputs, trunk, workers, start + random.randrange(1, 8), *["--resume"][: trunk.exists()], **lamb)
    assert main(command(inputs, trunk, workers, "--resume", **lamb)[3:]) == 0
    # without a state of its own it starts from the trunk again, with one it goes on
    kill_after(inputs, branch, workers, start + 2, trunk=trunk, save_every=3600)
    if workers == 1:
        kill_after(inputs, branch, workers, start + random.randrange(1, 8), "--resume", trunk=trunk)
    assert main(command(inputs, branch, workers, "--resume", trunk=trunk)[3:]) == 0
    assert_same(whole, branch)
    record = json.loads((trunk / "run.json").read_text())
    assert json.loads((branch / "run.json").read_text())["trunk"] == {"id": record["id"], "step": start}


def assert_same(whole: Path, broken: Path) -> None:
    """Weights, log, metrics and counts are equal."""
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
