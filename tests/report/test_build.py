"""A report is a function of its records, survives being killed, and one bad study costs only its own page."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from scala_lab.errors import UserError
from scala_lab.report.build import check_report_folder, rebuild_report, write_report
from scala_lab.report.chapter import Manifest
from scala_lab.sweep.store import Records
from tests.command_line import snapshot, strict_json
from tests.report.own_studies import forgotten_imports, records_of, write_five, write_study


@pytest.fixture(autouse=True)
def _forgotten():
    with forgotten_imports():
        yield


@pytest.fixture
def two(tmp_path):
    """References of two studies."""
    return write_study(tmp_path, "first"), write_study(tmp_path, "second", claim="X2")


def build(out: Path, *references: str, records: Records | None = None):
    return write_report(out, Manifest("embedded", studies=references), records or records_of(*references))


def test_files_have_the_names_that_users_script_against(tmp_path, two):
    build(tmp_path / "out", *two)
    found = {name for name, content in snapshot(tmp_path / "out").items() if content is not None}
    assert found == {
        *(f"figures/{stem}.{ending}" for stem in ("first", "second", "claims-forest") for ending in ("png", "svg")),
        *(f"tables/{stem}.{ending}" for stem in ("first", "second", "arms") for ending in ("csv", "md", "tex")),
        *("claims.json", "claims.md", "index.html", "measurements.jsonl", "report.json", "runs.jsonl"),
    }
    claims = strict_json((tmp_path / "out" / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["X1", "X2"]
    assert {"id", "source", "study", "statement", "paper", "measured", "interval", "rule", "verdict"} <= set(claims[0])
    assert claims[0]["interval"] == pytest.approx([0.5 - 4.3027 * 0.1 / 3**0.5, 0.5 + 4.3027 * 0.1 / 3**0.5], abs=1e-4)


def test_same_records_give_the_same_bytes(tmp_path, two):
    build(tmp_path / "a", *two)
    build(tmp_path / "b", *two)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_rebuilt_from_records_alone_is_the_same(tmp_path, two):
    out = tmp_path / "out"
    build(out, *two)
    before = snapshot(out)
    for name in ("figures", "tables"):
        shutil.rmtree(out / name)
    for name in ("claims.json", "claims.md", "index.html"):
        (out / name).unlink()
    rebuild_report(out)
    assert snapshot(out) == before


def test_scores_in_a_table_are_those_of_the_records(tmp_path, two):
    records = records_of(two[0])
    build(tmp_path / "out", two[0], records=records)
    lines = (tmp_path / "out" / "tables" / "first.csv").read_text().splitlines()[1:]
    scores = sorted(float(line.split(",")[2]) for line in lines)
    assert scores == sorted(100 * run["metrics"]["heldout"]["accuracy"] for run in records.runs.values())


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"before": "raise KeyError('rate')"}, "KeyError: 'rate' (broken.py, line 15, in analyse)"),
        ({"before": "frame.pivot(index='x', columns='y')"}, "(broken.py, line 15, in analyse)"),
        ({"label": "$\\frac{$"}, "ValueError: "),  # seen only when the figure is drawn
        ({"more": "[Tabulation('', frame, 'again')]"}, "study broken has 2 Tabulations named ''"),
        ({"more": "[Tabulation('../x', frame, 'out')]"}, "'../x' is part of a file name"),
        ({"before": "return None"}, "AttributeError: "),
    ],
)
def test_study_that_fails_takes_no_other_down(tmp_path, two, fault, sentence):
    broken = write_study(tmp_path, "broken", claim="X3", **fault)
    chapters = build(tmp_path / "out", two[0], broken, two[1])
    assert [bool(chapter.failure) for chapter in chapters] == [False, True, False]
    assert sentence in chapters[1].failure
    build(tmp_path / "alone", *two, records=records_of(*two))
    with_it, without = snapshot(tmp_path / "out"), snapshot(tmp_path / "alone")
    for name in without:
        if name.startswith(("figures", "tables", "claims", "runs")):
            assert with_it[name] == without[name], name
    assert not [name for name in with_it if "broken" in name]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "This study could not be analysed." in page


def test_study_whose_file_is_gone_keeps_the_records(tmp_path, two):
    out = tmp_path / "out"
    build(out, *two)
    records = (out / "runs.jsonl").read_bytes()
    Path(two[1]).unlink()
    chapters = write_report(out, Manifest.read(out), Records.read(out))
    assert "does not exist" in chapters[1].failure
    assert (out / "runs.jsonl").read_bytes() == records
    assert (out / "tables" / "first.csv").is_file()


def test_study_without_any_run_is_not_run(tmp_path, two):
    chapters = build(tmp_path / "out", two[0], records=Records())
    assert not chapters[0].failure
    assert not chapters[0].ran
    assert "Not run." in (tmp_path / "out" / "index.html").read_text()


def test_study_that_needs_nothing_under_this_profile_is_not_run(tmp_path, two):
    Path(two[0]).write_text(Path(two[0]).read_text().replace("for seed in (0, 1)", "for seed in ()"))
    chapters = build(tmp_path / "out", *two)
    assert not chapters[0].failure
    assert not chapters[0].ran
    assert chapters[1].ran


def test_records_that_no_study_needs_are_left_out(tmp_path, two):
    other = tmp_path / "other.py"
    other.write_text(Path(two[0]).read_text().replace('"mini-sst2"', '"mini-qqp"'))
    records = records_of(two[0])
    more = Records({**records.runs, **records_of(str(other)).runs})
    assert len(more.runs) == 8
    build(tmp_path / "out", two[0], records=more)
    assert set(Records.read(tmp_path / "out").runs) == set(records.runs)


def test_figure_that_is_no_longer_drawn_goes_and_the_user_s_notes_stay(tmp_path, two):
    out = tmp_path / "out"
    build(out, *two)
    (out / "notes.txt").write_text("mine")
    build(out, two[0])
    assert not (out / "figures" / "second.png").exists()
    assert not (out / "tables" / "second.csv").exists()
    assert (out / "notes.txt").read_text() == "mine"


def test_killed_at_any_rename_every_file_is_whole_and_the_next_build_is_clean(tmp_path):
    """The process ends without cleaning up at its n-th rename, as by kill -9; files are old or new, never half."""
    table = "return Findings([Tabulation('', frame[['method', 'score']], 'Scores')])"
    two = [write_study(tmp_path, name, before=table) for name in ("first", "second")]
    build(tmp_path / "new", *two)
    build(tmp_path / "old", two[0])
    old, new = snapshot(tmp_path / "old"), snapshot(tmp_path / "new")
    for place in range(30):
        out = tmp_path / f"out{place}"
        shutil.copytree(tmp_path / "old", out)
        if not _killed_at_rename(place, lambda out=out: build(out, *two)):
            break
        for name, content in snapshot(out).items():
            if content is not None and not any(part.startswith(".") for part in Path(name).parts):
                assert content in (old.get(name), new.get(name)), (place, name)
        build(out, *two)
        assert snapshot(out) == new, place
    assert place > 7  # three records, two folders, two claims files and the page


def _killed_at_rename(place: int, work) -> bool:
    """Do work in a child that dies at a rename; whether it died there."""
    child = os.fork()
    if child == 0:
        count, replace = 0, os.replace

        def dying(source, target):
            nonlocal count
            if count == place:
                os._exit(7)
            count += 1
            replace(source, target)

        os.replace = dying
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_folder_of_something_else_is_refused(tmp_path):
    manifest = Manifest("embedded")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file is a file: a report is a folder"):
        check_report_folder(tmp_path / "file" / "out", manifest)
    with pytest.raises(UserError, match=r"is not empty and holds no report.json"):
        check_report_folder(tmp_path, manifest)
    assert check_report_folder(tmp_path / "new", manifest) is None


def test_folder_of_another_profile_or_model_is_refused(tmp_path):
    Manifest("laptop", model="bert").write(tmp_path)
    changes = ({"profile": "embedded"}, {"model": None}, {"device": "cuda"}, {"seeds": (7, 8)}, {"tasks": ("qnli",)})
    for other in (Manifest(**{"profile": "laptop", "model": "bert", **change}) for change in changes):
        with pytest.raises(UserError, match=r"holds the report of other runs \(laptop bert on cpu seeds 0 1 2 3\)"):
            check_report_folder(tmp_path, other)
    assert check_report_folder(tmp_path, Manifest("laptop", model="bert", seeds=(0, 1, 2, 3, 4))) is not None
    assert check_report_folder(tmp_path, Manifest("laptop", model="bert", command="x")) is not None


def test_folder_without_a_report_cannot_be_rebuilt(tmp_path):
    with pytest.raises(UserError, match=r"holds no report: report.json is missing"):
        rebuild_report(tmp_path)
    Manifest("embedded").write(tmp_path)
    with pytest.raises(UserError, match=r"holds no report: runs.jsonl is missing"):
        rebuild_report(tmp_path)


def test_registered_claims_of_a_study_that_did_not_judge_them_are_not_testable(tmp_path):
    build(tmp_path / "out", write_five(tmp_path), records=Records())
    claims = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["C2", "C4", "C5", "C6", "C10"]
    assert {(claim["verdict"], claim["why"]) for claim in claims} == {("not testable here", "Nothing was measured.")}


def test_study_of_the_name_of_the_report_s_own_tables_is_refused(tmp_path):
    chapters = build(tmp_path / "out", write_study(tmp_path, "arms"))
    assert "study arms: the report has figures and tables of that name" in chapters[0].failure
