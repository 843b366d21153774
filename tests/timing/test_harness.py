from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
import torch

from scala_lab.clock import PHASES
from scala_lab.config import RunSpec
from scala_lab.timing import harness
from scala_lab.timing.harness import (
    MAX_ATTEMPTS,
    MAX_LOST,
    TimedTraining,
    _take_turns,
    phases,
    step_times,
    time_call,
    undisturbed,
)
from scala_lab.training.distributed import World
from scala_lab.training.run_dir import RunResult
from tests.tiny import write_rows

pytestmark = pytest.mark.long
ALONE = World(0, 1, torch.device("cpu"))


def results(specs):
    return [RunResult(Path("nowhere"), {"spec": spec.to_dict()}) for spec in specs]


@pytest.fixture
def spec(tmp_path, tiny_bert):
    def make(method, **values):
        return RunSpec.of(
            task=str(write_rows(tmp_path / "rows.csv", 60)),
            text_columns=("text",),
            label_column="label",
            model=str(tiny_bert),
            method=method,
            batch_size=16,
            micro_batch=8,
            lr=0.01,
            threads=1,
            **values,
        )

    return make


def test_every_method_has_its_phases_and_they_fit_into_the_step(spec):
    specs = {
        "plain": spec("lamb", max_steps=1),
        "freelb": spec("freelb"),
        "sam": spec("sam"),
        "m": spec("asam", sam_m=4),
    }
    specs |= {"noise": spec("scala", delay=0.0, pga="exact")}
    specs |= {"fused": spec("scala", delay=0.0, pga="fused", masks="shared")}
    measured = phases(results(specs.values()), names=list(specs), steps=3, warmup=1)
    assert 0 < measured.pop("cpu_share") <= 1.1
    seconds = {name: {} for name in specs}
    for key, values in measured.items():
        name, _, phase = key.partition(":")
        seconds[name][phase] = values
    common = {"data", "backward", "all-reduce", "optimizer", "step"}
    assert set(seconds["plain"]) == common | {"clean forward"}
    inner = {"inner forward", "inner backward", "adversarial forward"}
    assert set(seconds["noise"]) == common | {"clean forward"} | inner
    assert set(seconds["fused"]) == common | {"clean forward", "inner backward", "adversarial forward"}
    for name in ("sam", "m"):
        assert set(seconds[name]) == common | {"clean forward", "inner forward", "inner backward"}
    assert set(seconds["freelb"]) == common | {"adversarial forward"}
    for by_phase in seconds.values():
        assert all(len(values) == 3 for values in by_phase.values())
        for step in range(3):
            parts = sum(values[step] for phase, values in by_phase.items() if phase != "step")
            assert 0 < parts <= by_phase["step"][step]


@pytest.mark.parametrize("workers", [1, 2])
def test_timed_steps_are_counted_and_leave_nothing_behind(spec, workers, tmp_path, monkeypatch):
    specs = {"plain": spec("lamb"), "noise": spec("scala", delay=0.0, pga="exact")}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    measured = step_times(results(specs.values()), names=list(specs), workers=workers, steps=2, warmup=2)
    assert set(tmp_path.iterdir()) == before
    assert measured["matmul_rate"] > 0
    for name in specs:
        timed = {key.partition(":")[2]: values for key, values in measured.items() if key.startswith(name)}
        assert timed.pop("steps_per_epoch") == 4  # 54 of 60 rows are trained on
        assert timed["samples"] == [16, 6]  # the last two steps of the epoch
        assert all(len(values) == 2 for values in timed.values())
        assert timed["load rows"] == [-(-size // workers) for size in timed["samples"]]
        pairs = zip(timed["load tokens"], timed["tokens"], strict=True)
        assert all(padded >= tokens / workers for padded, tokens in pairs)
        assert {"load micro_batches", "load squares", "data", "backward", "optimizer"} <= set(timed)
        for step in range(2):
            assert 0 < sum(timed[phase][step] for phase in PHASES if phase in timed) <= timed["step"][step]
        # the worker that comes last to the all-reduce spends least time in it
        pairs = zip(timed["exchange"], timed["all-reduce"], strict=True)
        assert all(0 <= least <= first for least, first in pairs)
        if workers == 1:
            assert timed["without"] == timed["step"]
    # the same rows: eight passes against three
    pairs = zip(measured["noise:flops"], measured["plain:flops"], strict=True)
    assert [noise / plain for noise, plain in pairs] == pytest.approx([8 / 3, 8 / 3])


def test_what_comes_first_changes_from_step_to_step(spec):
    order = []

    class Noting(TimedTraining):
        def attempt(self, step, silent=False):
            order.append((step, silent))
            return {"step": 1.0, "all-reduce": 0.5}, 0.0

    class Two(World):
        def gather(self, value):
            return [value, value]

    timed = Noting(spec("lamb").resolved(), ALONE)
    measured = _take_turns({"LAMB": timed}, Two(0, 2, torch.device("cpu")), steps=2, warmup=1)
    assert order == [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True)]
    assert measured["LAMB:without"] == [1.0, 1.0]
    assert measured["LAMB:exchange"] == [0.5, 0.5]


def test_a_machine_without_hosts_measures_nothing_over_links(monkeypatch):
    monkeypatch.setattr(harness, "unsupported_reason", lambda: "no hosts here")
    settings = {"names": ["LAMB"], "workers": 2, "steps": 2, "warmup": 0, "rate": "1gbit"}
    assert step_times([], **settings) == {"lack": "no hosts here"}


def test_silent_workers_do_not_exchange_and_others_do(spec, monkeypatch):
    sent = []
    monkeypatch.setattr(torch.distributed, "all_reduce", sent.append)
    for name in ("broadcast", "barrier"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, **__: None)
    timed = TimedTraining(spec("lamb").resolved(), World(0, 2, torch.device("cpu")))
    timed.attempt(0, silent=True)
    assert sent == []
    timed.attempt(0)
    assert len(sent) == 1


def test_time_asleep_is_lost_and_time_computing_is_not():
    seconds, idle = time_call(lambda: time.sleep(0.05), ALONE)
    assert seconds >= 0.05
    assert idle == pytest.approx(seconds, rel=0.2)

    def compute():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    seconds, idle = time_call(compute, ALONE)
    assert seconds - idle >= 0.05 - 1e-3  # two clocks


def test_what_was_disturbed_is_done_again_until_it_was_not():
    attempts = iter([("first", 0.5), ("second", MAX_LOST / 2), ("third", 0.0)])
    assert undisturbed(lambda: next(attempts), ALONE) == "second"
    assert next(attempts)[0] == "third"


def test_of_attempts_that_were_all_disturbed_the_least_counts():
    lost = [0.5, 0.2, 0.4, 0.3]
    attempts = iter(enumerate(lost))
    assert len(lost) == MAX_ATTEMPTS
    assert undisturbed(lambda: next(attempts), ALONE) == 1
