"""`study`, `reproduce` and `report` on a profile cut small: from specs to a page, and again from its records."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.study import profiles
from scala_lab.sweep.store import Records
from tests.command_line import refuse, snapshot
from tests.report.own_studies import forgotten_imports, write_study

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parent.parent.parent / "docs" / "examples" / "my_study.py"


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    """An embedded profile of runs that take a moment, in a folder of one's own."""
    small = replace(
        profiles.EMBEDDED,
        seeds=(0, 1),
        settings={"train_samples": 64, "tuning_samples": 32, "eval_samples": 64, "epochs": 1, "threads": 1},
        large_batch=32,
    )
    monkeypatch.setattr(profiles, "PROFILES", {**profiles.PROFILES, "embedded": small})
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "my_study.py")
    with forgotten_imports():
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """Shared by tests of the same runs, which only the first one trains."""
    return tmp_path_factory.mktemp("store")


def runs_in(store: Path) -> dict[str, int]:
    """When each run's record was last written."""
    return {file.parent.name: file.stat().st_mtime_ns for file in (store / "runs").glob("*/run.json")}


def test_the_example_is_short_enough_to_be_one():
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_example_from_specs_to_page_and_nothing_twice(capfd):
    assert main(["study", "my_study.py", "--out", "out", "--store", "store"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "report: out/index.html"
    trained = runs_in(Path("store"))
    runs = [json.loads((Path("store/runs") / name / "run.json").read_text()) for name in trained]
    scores = [100 * run["metrics"]["dev"]["accuracy"] for run in runs if run["spec"]["seed"] in (0, 1)]
    assert len(scores) == 6
    assert len(runs) >= 9, "the rate is tuned before, on runs of their own"
    first = snapshot(Path("out"))
    table = Path("out/tables/my_study.csv").read_text().splitlines()
    assert sum(float(line.split(",")[1]) for line in table[1:]) / 3 == pytest.approx(sum(scores) / 6, abs=1e-9)

    assert main(["study", "my_study.py", "--out", "out", "--store", "store"]) == 0
    assert runs_in(Path("store")) == trained
    assert snapshot(Path("out")) == first

    shutil.rmtree("store")
    shutil.rmtree("out/figures")
    assert main(["report", "out"]) == 0
    assert snapshot(Path("out")) == first


def test_a_report_keeps_the_studies_it_has(capfd, store):
    write_study(Path(), "first")
    write_study(Path(), "second", claim="X2", before="raise ValueError('no rows')")
    assert main(["study", "first.py", "--out", "out", "--store", str(store), "--processes", "1"]) == 0
    trained = runs_in(store)
    tables = snapshot(Path("out/tables"))
    capfd.readouterr()
    assert main(["study", "second.py", "--out", "out", "--store", str(store)]) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1] == "report: out/index.html"
    assert "scala-lab: study second could not be analysed: ValueError: no rows (second.py, line 15, in analyse)" in err
    assert runs_in(store) == trained  # both need the same runs
    assert snapshot(Path("out/tables")) == tables
    assert json.loads(Path("out/report.json").read_text())["studies"] == ["first.py", "second.py"]
    assert main(["report", "out"]) == 1


def test_a_report_goes_on_without_its_store_and_with_more_seeds(capfd, store):
    write_study(Path(), "first")
    text = Path("first.py").read_text().replace("for seed in (0, 1)", "for seed in profile.seeds")
    Path("first.py").write_text(text)
    first = ["study", "first.py", "--out", "out", "--processes", "1"]
    assert main([*first, "--store", str(store), "--seeds", "0"]) == 0
    kept = Records.read(Path("out"))
    assert main([*first, "--store", "new", "--seeds", "0", "1", "--from-report"]) == 0
    assert len(runs_in(Path("new"))) == 2, "seed 1 with both methods"
    assert kept.runs.items() <= Records.read(Path("out")).runs.items()

    shutil.rmtree("new")
    made = snapshot(Path("out/tables"))
    assert main([*first, "--store", "new", "--seeds", "0", "1", "--report-only"]) == 0
    assert not Path("new").exists()
    assert snapshot(Path("out/tables")) == made
    refuse(capfd, [*first, "--seeds", "1"], "out holds the report of other runs")


def test_timings_can_be_left_for_a_quiet_machine(capfd, store):
    write_study(Path(), "first")
    with Path("first.py").open("a") as stream:
        stream.write(
            "\nfrom tests.sweep.measures import random_numbers\nfrom scala_lab.sweep.cells import Measurement\n"
            "needed = cells\ndef cells(profile):\n    timing = Measurement(random_numbers, alone=True)\n"
            "    return [*needed(profile), Cell(timing)]\n"
            "STUDY = Study('first', '', '', cells, lambda profile, frame: Findings(found=str(len(frame))))\n"
        )
    command = ["study", "first.py", "--out", "out", "--store", str(store), "--processes", "1"]
    assert main([*command, "--no-timings"]) == 0
    assert not Records.read(Path("out")).measurements
    assert main(command) == 0
    assert len(Records.read(Path("out")).measurements) == 1


def test_reproduce_takes_all_studies_and_trains_shared_runs_once(capfd, monkeypatch, store):
    from scala_lab.study import api as discovery

    references = [write_study(Path(), name, claim=claim) for name, claim in (("first", "X1"), ("second", "X2"))]
    monkeypatch.setattr(
        discovery, "all_studies", lambda: {reference: discovery.find_study(reference) for reference in references}
    )
    assert main(["reproduce", "--store", str(store)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "report: reports/embedded/index.html"
    assert len(runs_in(store)) == 4
    claims = json.loads(Path("reports/embedded/claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["X1", "X2"]


def test_what_fails_is_reported_and_the_exit_code_says_so(capfd, store):
    write_study(Path(), "first")
    with Path("first.py").open("a") as stream:
        stream.write(
            "\ndef fail(runs):\n    raise ValueError('no such thing')\n"
            "\nfrom scala_lab.sweep.cells import Measurement\n"
            "needed = cells\ndef cells(profile):\n    return [*needed(profile), Cell(Measurement(fail))]\n"
            "STUDY = Study('first', '', '', cells, lambda profile, frame: Findings(found=str(len(frame))))\n"
        )
    assert main(["study", "first.py", "--out", "out", "--store", str(store), "--processes", "1"]) == 1
    _, err = capfd.readouterr()
    assert "scala-lab: a run or measurement failed; the report says why, --retry-failed tries again" in err
    page = Path("out/index.html").read_text()
    assert "4 finished, 1 failed" in page
    assert "no such thing" in page


def test_dry_run_counts_shared_runs_once_and_leaves_nothing(capsys):
    for name in ("first", "second"):
        write_study(Path(), name)
    before = snapshot(Path())
    assert main(["study", "first.py", "second.py", "my_study.py", "--dry-run"]) == 0
    assert snapshot(Path()) == before
    rows = {
        cells[0]: cells[1:]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) > 4
    }
    # 64 rows at B=512: an epoch is a step; none of these runs is a branch of another
    assert rows["first"][:5] == rows["second"][:5] == ["4", "0", "4", "0", "4"]
    assert rows["my_study"][:6] == ["6", "0", "6", "0", "12", f"{6 * 3 * 64:,}"]
    assert rows["tuning"][:5] == ["3", "0", "3", "0", "6"]
    assert rows["all, shared runs once"][:5] == ["13", "0", "13", "0", "22"]


def test_list_names_every_study(capsys):
    from scala_lab.study.api import study_names

    assert main(["study", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in study_names())


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["study"], "study needs a name"),
        (["study", "convergense"], "unknown study 'convergense': did you mean 'convergence'?"),
        (["study", "nowhere.py"], "study file nowhere.py does not exist"),
        (["study", "my_study.py", "--profile", "embeded"], "unknown profile 'embeded': did you mean 'embedded'?"),
        (["study", "my_study.py", "--data-dir", "nowhere"], "data folder nowhere does not exist"),
        (["study", "my_study.py", "--model", "./nowhere"], "model folder ./nowhere does not exist"),
        (["study", "my_study.py", "--processes", "0"], "--processes must be at least 1, not 0"),
        (["study", "my_study.py", "--executor", "cloud"], "--executor must be one of local, slurm, not 'cloud'"),
        (["study", "my_study.py", "--executor", "slurm", "--sbatch", "long"], "--sbatch takes name=value, not 'long'"),
        (["study", "my_study.py", "copy/my_study.py"], "'my_study' is the name of another module"),
        (["study", "my_study.py", "twin.py"], "two of the studies are named 'my_study'"),
        (["study", "my_study.py", "--out", "my_study.py"], "my_study.py is a file: a report is a folder"),
        (["study", "my_study.py", "--out", "."], "is not empty and holds no report.json: choose another --out"),
        (["study", "my_study.py", "--store", "my_study.py"], "my_study.py is a file"),
        (["study", "my_study.py", "--profile", "laptop"], "paraphrase-MiniLM-L3-v2"),
        (["report"], "report:"),
        (["report", "nowhere"], "nowhere holds no report: report.json is missing"),
        (["reproduce", "sharpness"], "unexpected 'sharpness'"),
    ],
)
def test_mistake_gets_one_sentence_and_leaves_nothing(args, sentence, capfd):
    Path("copy").mkdir()
    shutil.copy(EXAMPLE, "copy/my_study.py")
    shutil.copy(EXAMPLE, "twin.py")
    refuse(capfd, args, sentence)
