from __future__ import annotations

from dataclasses import asdict

import pytest
from measures import Measure, Result, alone, compared, read_results
from summary import Options, main
from tables import COLUMNS, cells

from scala_lab.files import write_json


def made_up() -> Result:
    measures = (
        compared("a step", [2.0, 3.0, 2.2], [1.0, 1.2, 1.1], "s", "ours over peer", "plain", bound="at most", goal=1.5),
        compared("speed", [300.0], [100.0], "samples/s", "ours over peer", "peer", goal=2.5, limit=4.0),
        alone("start", [0.4], "s", bound="at most", goal=0.5, limit=0.1),
        alone("told", [7.0], "s"),
    )
    return Result("made_up", "Made up", measures, {"rounds": 3}, {"command": "made_up.py"}, {})


def test_a_ratio_is_that_of_medians_in_the_direction_asked_for():
    slower, faster = (
        compared("x", [2.0, 9.0, 2.2], [1.0, 1.2, 1.1], "s", ratio, "peer")
        for ratio in ("ours over peer", "peer over ours")
    )
    assert (slower.ours, slower.peer, slower.ratio) == (2.2, 1.1, 2.0)
    assert faster.ratio == 0.5
    assert slower.ours_range == (2.0, 9.0)


@pytest.mark.parametrize(
    ("bound", "judged", "goal", "met"),
    [
        ("at least", 2.5, 2.5, True),
        ("at least", 2.4, 2.5, False),
        ("at most", 2.1, 2.1, True),
        ("at most", 2.2, 2.1, False),
    ],
)
def test_a_goal_is_met_on_its_own_side(bound, judged, goal, met):
    assert Measure("x", "s", 1.0, 1.0, "peer", judged, bound, goal).met is met


def test_without_a_peer_our_own_value_is_judged():
    assert Measure("x", "s", 0.4, bound="at most", goal=0.5).met is True
    assert Measure("x", "s", 0.6, bound="at most", goal=0.5).met is False
    assert Measure("x", "s", 0.6).met is None


def test_the_share_of_the_limit_is_one_at_the_limit_and_less_before_it():
    least = Measure("x", "s", 1.0, 1.0, "peer", 2.5, "at most", 2.1, limit=2.0)
    most = Measure("x", "s", 1.0, 1.0, "peer", 0.6, "at least", 0.6, limit=1.0)
    assert least.share_of_limit == pytest.approx(0.8)
    assert most.share_of_limit == pytest.approx(0.6)


def test_a_row_says_what_was_missed():
    missed, reached, start, told = (dict(zip(COLUMNS, cells(one), strict=True)) for one in made_up().measures)
    assert missed["met"] == "no"
    assert missed["goal"] == "<= 1.5"
    assert missed["ours"] == "2.2 s (2-3)"
    assert missed["peer"] == "plain: 1.1 s (1-1.2)"
    assert (reached["met"], reached["ratio"], reached["share of limit"]) == ("yes", "3", "75%")
    assert (start["met"], start["peer"], start["ratio"], start["share of limit"]) == ("yes", "", "", "25%")
    assert told["met"] == told["goal"] == ""


def test_summary_knows_every_file_that_carries_measures(tmp_path, capsys):
    result = made_up()
    growth = Result(
        "growth",
        "Growth",
        (alone("slope", [1.0], ""),),
        {},
        {},
        {},
        ({"of": "seconds", "against": "rows", "x": [1.0, 2.0, 4.0], "y": [1.0, 2.0, 4.0], "slope": 1.0},),
    )
    for one in (result, growth):
        write_json(tmp_path / f"{one.area}.json", asdict(one))
    write_json(tmp_path / "other.json", {"something": "else"})
    assert [(one.area, len(one.measures)) for one in read_results(tmp_path)] == [("growth", 1), ("made_up", 4)]
    assert [one.met for one in read_results(tmp_path)[1].measures] == [False, True, True, None]
    main(Options(tmp_path))
    said = capsys.readouterr().out
    assert "2 of 3 goals met" in said
    for name in ("a step", "speed", "start", "told", "slope"):
        assert name in said
    for area in ("made_up", "growth"):
        assert (tmp_path / f"{area}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{area}.svg").read_text()
    drawn = (tmp_path / "made_up.svg").read_text()
    assert "goal missed" in drawn
    assert "goal &lt;= 1.5" in drawn
    assert "slope 1.00" in (tmp_path / "growth.svg").read_text()
