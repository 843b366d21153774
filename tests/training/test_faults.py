"""When one of several workers fails, the run's record names it and the cause, not what followed from it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from scala_lab.cli import main
from scala_lab.errors import UserError
from scala_lab.files import write_json
from scala_lab.training import distributed as launch
from scala_lab.training.distributed import Fault, find_fault
from scala_lab.training.trainer import GradientBuffer
from tests.command_line import strict_json, train_flags
from tests.tiny import write_rows
from tests.training import forked

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 240
BROKEN = "worker 1: ValueError: broken on purpose"


@pytest.fixture
def command(tmp_path, tiny_bert):
    """Flags of a run of 9 steps with two workers."""
    rows = write_rows(tmp_path / "rows.csv", 48)
    return lambda **more: train_flags(tiny_bert, rows, workers=2, micro_batch=4, out=tmp_path / "out", **more)


@pytest.fixture
def faulty(monkeypatch):
    """Have our own launcher start workers of which one fails, or none if nothing is given."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"the launcher still waits for its workers after {TIMEOUT} seconds, with FAULT={set_to}")

    set_to = ""

    def set_fault(fault: str = "none none none") -> None:
        nonlocal set_to
        set_to = fault
        monkeypatch.setenv("FAULT", fault)

    monkeypatch.setattr(launch, "_start_here", forked.start)
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TIMEOUT)
    yield set_fault
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def record(folder: Path) -> dict:
    return strict_json((folder / "out" / "run.json").read_text())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("1 load raise", BROKEN),
        ("1 step raise", BROKEN),
        ("0 step raise", "worker 0: ValueError: broken on purpose"),
        ("1 evaluation raise", BROKEN),
        ("1 step kill", "worker 1 was ended by SIGKILL"),
        ("0 step kill", "worker 0 was ended by SIGKILL"),
        ("1 step exit", "worker 1 ended with exit code 3"),
    ],
)
def test_record_names_the_worker_that_failed_and_why(fault, error, command, faulty, tmp_path, capfd):
    faulty(fault)
    assert main(command()) == 1
    assert record(tmp_path)["status"] == "failed"
    assert record(tmp_path)["error"] == error
    said = capfd.readouterr().err.splitlines()[-1]
    assert said == f"scala-lab: error: {error}; give --resume to go on with the run in {tmp_path / 'out'}"


@pytest.mark.parametrize(("rank", "kind"), [(0, "kill"), (1, "kill"), (1, "raise")])
def test_worker_that_fails_before_the_others_can_meet_it(rank, kind, command, faulty, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)  # the other one would wait for ten minutes
    faulty(f"{rank} join {kind}")
    assert main(command()) == 1
    assert record(tmp_path)["error"] == (BROKEN if kind == "raise" else f"worker {rank} was ended by SIGKILL")
    assert record(tmp_path)["steps"] == 9
    assert record(tmp_path)["steps_done"] == 0

    faulty()
    assert main(["train", "--out", str(tmp_path / "out"), "--resume", "--no-tensorboard"]) == 0
    assert record(tmp_path)["status"] == "finished"
    assert "error" not in record(tmp_path)


def test_run_goes_on_after_its_first_worker_was_killed(command, faulty, tmp_path):
    faulty("0 step kill")
    assert main(command(save_every=0)) == 1
    assert record(tmp_path)["steps_done"] == 2, "what the killed worker wrote is kept"
    faulty()
    assert main(["train", "--out", str(tmp_path / "out"), "--resume", "--no-tensorboard"]) == 0
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 10))


def test_wrong_input_that_a_worker_finds_leaves_no_run(command, faulty, tmp_path, capfd):
    faulty("1 load user")
    assert main(command()) == 2
    assert capfd.readouterr().err == "scala-lab: error: a sentence for the user\n"
    assert not (tmp_path / "out" / "run.json").exists()


def test_under_torchrun_the_record_names_the_worker_that_raised(command, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {"FAULT": "1 step raise", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "-m", "tests.training.faulty_worker", *command()],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode != 0, done.stderr
    assert record(tmp_path)["status"] == "failed"
    assert record(tmp_path)["error"] == BROKEN


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("1 step loss", "worker 1: the loss and the gradient are not finite at step 3"),
        ("1 step gradient", "worker 1: the gradient is not finite at step 3"),
        ("0 step gradient", "worker 0: the gradient is not finite at step 3"),
    ],
)
def test_diverged_run_says_which_worker_had_what_at_which_step(fault, error, command, faulty, tmp_path, capfd):
    faulty(fault)
    assert main(command()) == 1
    assert record(tmp_path)["status"] == "diverged"
    assert record(tmp_path)["error"] == error
    assert record(tmp_path)["steps_done"] == 3
    assert f"{error} of 9" in capfd.readouterr().out


LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:1] Connection closed by peer"


@pytest.mark.parametrize(
    ("said", "ended", "sentence"),
    [
        ([(0, "lost peer", LOST)], {0: 1, 1: -signal.SIGKILL}, "worker 1 was ended by SIGKILL"),
        ([(0, "own fault", "odd"), (2, "lost peer", LOST)], {0: 1, 1: -9, 2: 1}, "worker 1 was ended by SIGKILL"),
        ([(0, "lost peer", LOST), (1, "own fault", "odd")], {0: 1, 1: 1}, "worker 1: odd"),
        ([(1, "own fault", "odd"), (0, "own fault", "late")], {0: 1, 1: 1}, "worker 1: odd"),
        # a library that aborts its process when a peer is gone
        ([(1, "own fault", "odd")], {0: -signal.SIGABRT, 1: 1}, "worker 1: odd"),
        ([(0, "lost peer", LOST)], {0: 1, 1: -signal.SIGABRT}, "worker 1 was ended by SIGABRT"),
        ([(0, "lost peer", LOST)], {0: 1, 1: 143}, "worker 1 was ended by SIGTERM"),
        ([(0, "lost peer", LOST)], {0: 1, 1: 3}, "worker 1 ended with exit code 3"),
        ([(0, "lost peer", LOST)], {0: 1}, f"worker 0: {LOST}"),
        # torchrun's workers, whose exit codes are not known
        ([(0, "lost peer", LOST)], {}, f"worker 1 ended without reporting an error (worker 0: {LOST})"),
        ([(0, "lost peer", LOST), (1, "own fault", "odd")], {}, "worker 1: odd"),
        ([], {}, "the workers' launcher ended with exit code 1, and no worker reported an error"),
    ],
)
def test_cause_is_told_from_what_follows_from_it(said, ended, sentence, tmp_path):
    for number, (rank, kind, text) in enumerate(said):
        file = tmp_path / f"{rank}.json"
        write_json(file, asdict(Fault(f"worker {rank}: {text}", lost_peer=kind == "lost peer")))
        os.utime(file, ns=(number, number))
    workers = max([1, *ended, *(rank for rank, *_ in said)]) + 1
    assert find_fault(tmp_path, workers, ended).sentence == sentence


def test_workers_with_different_faults_are_all_named():
    buffer = GradientBuffer(torch.nn.Linear(2, 2).parameters(), workers=4)
    buffer._broken[:] = torch.tensor([0, 2, 3, 2])
    assert buffer.describe_broken(math.nan) == (
        "workers 1 and 3: the gradient is not finite; worker 2: the loss and the gradient are not finite"
    )


def test_sum_that_overflows_though_every_worker_is_finite_is_nobodys_fault():
    buffer = GradientBuffer(torch.nn.Linear(2, 2).parameters(), workers=2)
    assert buffer.describe_broken(math.inf) == "the gradient is not finite"


def test_failure_of_other_workers_is_passed_on_as_well():
    with pytest.raises(UserError, match="a sentence"):
        launch.raise_failure(Fault("worker 1: a sentence", user_error="a sentence"))
    with pytest.raises(launch.WorkerFailure, match=r"^worker 1: odd$"):
        launch.raise_failure(Fault("worker 1: odd", "a trace"))
