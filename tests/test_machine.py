"""How many threads and workers a host is given, and what is said where they outnumber its cores."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scala_lab import RunSpec, machine
from scala_lab.cli import main
from scala_lab.config import MachineSpec
from scala_lab.machine import warn_of_crowded_cores
from scala_lab.study.api import all_studies
from scala_lab.study.profiles import PROFILES
from scala_lab.training.distributed import check_devices
from tests.command_line import data_flags, flags, refuse, train_flags
from tests.processes import run
from tests.tiny import write_rows


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv", 48)
    return tmp_path


@pytest.fixture
def one_core(monkeypatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)


@pytest.fixture
def bound() -> Iterator[None]:
    """Have this process, and those it starts, run on one core."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not bind processes to cores")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("value", "threads"),
    [("3", 3), (" 2 ", 2), ("+4", 4), ("5,2", 5), ("3 , 1", 3)]
    + [(bad, 8) for bad in (None, "", "0", "-1", "x", "2x", "1.5", "2,", "2,0", "0,2")],
)
def test_threads_are_as_openmp_reads_its_variable_or_the_cores(monkeypatch, value, threads):
    """What OpenMP ignores is ignored."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert RunSpec().resolved().machine.threads == threads
    assert RunSpec.of(threads=6).resolved().machine.threads == 6, "a given number decides"
    if threads == 8:
        assert RunSpec.of(workers=3).resolved().machine.threads == 2, "the cores are shared"
        assert RunSpec.of(workers=9).resolved().machine.threads == 1


def test_doctor_and_the_record_of_a_run_agree(here, tiny_bert, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["doctor"]) == 0
    assert "3 by default" in capfd.readouterr().out
    assert main(train_flags(tiny_bert, Path("rows.csv"), threads=None, epochs=1)) == 0
    record = json.loads(Path("out/run.json").read_text())
    assert record["environment"]["threads"] == record["spec"]["machine"]["threads"] == 3


@pytest.mark.parametrize("command", ["evaluate", "sharpness", "landscape"])
def test_commands_on_checkpoints_take_the_threads_of_the_variable(here, tiny_bert, monkeypatch, command):
    more = {
        "evaluate": {},
        "sharpness": {"samples": 4},
        "landscape": {"samples": 4, "out": "l", "directions": "random"},
    }
    args = [command, str(tiny_bert), *data_flags(Path("rows.csv"), threads=None), *flags(**more[command])]
    args += flags(line_points=2, plane_points=0) if command == "landscape" else []
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(1)
    assert main(args) == 0
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("name", PROFILES)
def test_ids_of_profiles_do_not_depend_on_the_variable(monkeypatch, name):
    """Else a study would train its runs again in another shell."""
    profile, keys = PROFILES[name], []
    studies = [study for study in all_studies().values() if name != "paper" or len(study.cells(profile)) < 200]
    for value in ("1", "7"):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        keys.append([cell.key for study in studies for cell in study.cells(profile)])
    assert keys[0] == keys[1]
    assert len(keys[0]) > 100


def test_more_than_four_workers_on_a_core_are_refused(here, tiny_bert, one_core, capfd):
    message = "--workers 5 is too many for the 1 core of this host, which take up to 4: with torchrun"
    refuse(capfd, train_flags(tiny_bert, Path("rows.csv"), workers=5, device="cpu"), message)
    rows = data_flags(Path("rows.csv"))
    refuse(capfd, ["sharpness", str(tiny_bert), *rows, *flags(samples=12, workers=5, device="cpu")], message)


@pytest.mark.parametrize("command", ["train", "sharpness"])
def test_workers_that_outnumber_the_cores_are_spoken_of(here, tiny_bert, bound, capfd, command):
    """Once, when a run starts; what is refused before is not spoken of."""
    if command == "train":
        args = train_flags(tiny_bert, Path("rows.csv"), workers=2, device="cpu", epochs=1)
    else:
        args = ["sharpness", str(tiny_bert), *data_flags(Path("rows.csv"))]
        args += flags(samples=12, workers=2, device="cpu")
    assert main(args) == 0
    assert capfd.readouterr().err.count("note: 2 workers share the 1 core of this host and take turns\n") == 1


def test_note_on_workers(one_core, monkeypatch, capfd):
    warn_of_crowded_cores("cpu", 4, 1)
    assert capfd.readouterr().err == "note: 4 workers share the 1 core of this host and take turns\n"
    warn_of_crowded_cores("cpu", 2, 3)
    assert capfd.readouterr().err == "note: 2 workers of 3 threads share the 1 core of this host and take turns\n"
    warn_of_crowded_cores("cuda", 4, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    warn_of_crowded_cores("cpu", 4, 1)
    assert capfd.readouterr().err == "", "torchrun may have given each of them cores of its own"


def test_workers_that_fit_are_not_spoken_of(monkeypatch, capfd):
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    machine.check_crowd(16)
    for workers, threads in ((4, 1), (2, 2), (1, 16)):
        warn_of_crowded_cores("cpu", workers, threads)
    assert capfd.readouterr().err == ""


def test_workers_of_a_launcher_are_let_in(one_core, monkeypatch):
    """A launcher may give each of them a core of its own, and then each sees only that one."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "16"), ("LOCAL_WORLD_SIZE", "16")):
        monkeypatch.setitem(os.environ, name, value)
    check_devices(MachineSpec(workers=16, device="cpu"))


def test_peak_memory_is_this_process_own():
    """On Linux getrusage counts the memory of the parent process too."""
    child = "from scala_lab.machine import peak_memory_bytes; print(peak_memory_bytes())"
    parent = "import subprocess, sys; held = b'x' * 10**9; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    assert 10**7 < int(run([sys.executable, "-c", parent, child])) < 9 * 10**8
