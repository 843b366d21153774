"""What a person sees of a sweep, and the time that is left."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from scala_lab.config import RunSpec
from scala_lab.sweep.cells import Job, Measurement
from scala_lab.sweep.cost import Pace, describe_seconds
from scala_lab.sweep.engine import SweepView
from tests.sweep import measures

MACHINE = {"threads": 1, "device": "cpu"}
SPECS = [RunSpec.of(method="plain", seed=seed, **MACHINE).resolved() for seed in range(4)]


@pytest.fixture
def watched(tmp_path):
    def watch(terminal: bool, quiet: bool = False):
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, quiet=quiet, width=100, legacy_windows=False)
        jobs = {spec.run_id: Job(spec, tmp_path) for spec in SPECS}
        costs = dict.fromkeys(jobs, 10.0)
        with SweepView(jobs, costs, costs, {SPECS[0].run_id: "finished"}, console) as view:
            view.update([jobs[SPECS[1].run_id], jobs[SPECS[2].run_id]], [jobs[SPECS[3].run_id]], 2.0)
            view.learn(SPECS[1].run_id, 30.0)
            view.end(SPECS[1].run_id, "diverged")
            view.update([jobs[SPECS[2].run_id]], [], 2.0)
        return out.getvalue()

    return watch


def test_plain_lines_where_there_is_no_terminal(watched):
    assert watched(False).splitlines() == [
        "1 of 4 done, 3 left",
        f"diverged {SPECS[1].name}: 2 of 4 done, 1 diverged, 2 left, about 30 s to go",
    ]


def test_live_view_names_what_runs(watched):
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", watched(True))
    assert f"running  {SPECS[2].name}" in text
    assert f"waiting for another sweep  {SPECS[3].name}" in text
    assert f"diverged {SPECS[1].name}" in text
    assert "2 of 4 done, 1 diverged, 2 left, about 30 s to go" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_console_shows_nothing(watched, terminal):
    assert watched(terminal, quiet=True) == ""


def test_time_left_weighs_runs_by_cost_and_measurements_by_kind():
    pace = Pace()
    timed, shared = Measurement(measures.random_numbers, alone=True), Measurement(measures.weight_sum)
    assert pace.seconds_left([(SPECS[0], 5.0)], 2.0) is None
    pace.learn(SPECS[0], 10.0, 20.0)
    pace.learn(SPECS[1], 30.0, 40.0)  # 60 seconds for a cost of 40
    pace.learn(timed, 0.0, 7.0)
    pace.learn(shared, 0.0, 4.0)
    assert pace.seconds_left([(SPECS[2], 20.0)], 1.0) == pytest.approx(30.0)
    assert pace.seconds_left([(SPECS[2], 20.0), (shared, 0.0), (timed, 0.0)], 2.0) == pytest.approx(
        (30.0 + 4.0) / 2 + 7.0
    )
    # a kind of run that was not seen goes by all runs, a kind of measurement that was not seen by nothing
    other = SPECS[0].override(batch_size=32)
    assert pace.expect(other, 4.0) == pytest.approx(6.0)
    assert pace.expect(Measurement(measures.interval), 0.0) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (3600, "60 min"), (86_400, "24.0 h")]
)
def test_length_of_time_in_words(seconds, words):
    assert describe_seconds(seconds) == words
