"""Studies are found by name or file, run as programs, and get their cells as rows of a frame."""

from __future__ import annotations

import math
import pickle
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from scala_lab.cli import main as run_command
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.study import Cell, Findings, Study
from scala_lab.study.api import all_studies, find_study, frame_of, main, place_in_paper, reference_of, study_names
from scala_lab.sweep.cells import Measurement
from scala_lab.sweep.store import Records
from tests.studies.synthetic import run_record as synthetic

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "my_study.py"


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch):
    """Forget modules of users' files between tests."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("mine", "my_study"):
        sys.modules.pop(name, None)


def test_every_module_of_the_package_is_a_study_named_like_its_file():
    assert study_names()
    for name in study_names():
        study = find_study(name)
        assert study.name == name
        assert reference_of(study) == name
        assert study.question
        assert study.title


def test_all_studies_stand_in_the_order_of_the_paper():
    studies = list(all_studies().values())
    assert sorted(study.name for study in studies) == study_names()
    places = [place_in_paper(study) for study in studies]
    assert places == sorted(places)


def test_figures_come_by_number_then_tables_then_other_sources_then_those_beyond():
    def named(source):
        return Study(source, "", "", lambda profile: [], lambda profile, frame: Findings(), source=source)

    order = ["Figure 1(a)", "Fig. 1(c)", "Figure 3", "Figure 10", "Table 1", "Table 6", "Theorem 4", ""]
    mixed = [order[index] for index in (7, 3, 5, 0, 6, 2, 4, 1)]
    assert sorted(mixed, key=lambda source: place_in_paper(named(source))) == order


def test_mistyped_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="unknown study 'convergense': did you mean 'convergence'"):
        find_study("convergense")


def test_dashes_are_read_as_underscores():
    assert find_study("large-batch-methods") is find_study("large_batch_methods")


def test_file_is_found_by_its_path_and_again_by_its_reference(monkeypatch):
    monkeypatch.chdir(EXAMPLE.parent)
    study = find_study("my_study.py")
    assert study.name == "my_study"
    assert find_study(reference_of(study)) is study


def test_a_file_that_declares_its_study_gives_name_functions_and_claims(tmp_path):
    lines = ["from scala_lab.study import declare", "from scala_lab.study.verdicts import Claim", "X1 = Claim('X1')"]
    lines += ["def cells(profile):", "    return []", "def analyse(profile, frame):", "    return None"]
    lines += ["STUDY = declare(__name__, title='T', question='Q?', source='Table 9')"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    study = find_study(str(tmp_path / "mine.py"))
    assert (study.name, study.cells(None), study.analyse(None, None)) == ("mine", [], None)
    assert [(claim.id, claim.study, claim.source) for claim in study.claims] == [("X1", "mine", "Table 9")]


def test_a_process_started_from_here_can_import_the_file(tmp_path, monkeypatch):
    """Measurements are sent to other processes as pickles, which name their functions, also those of a user's file."""
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    with (tmp_path / "mine.py").open("a") as stream:
        stream.write("\n\ndef twice(runs, x):\n    return {'value': 2 * x}\n")
    find_study(str(tmp_path / "mine.py"))
    assert str(tmp_path) in sys.path
    sent = pickle.dumps(Measurement(sys.modules["mine"].twice, settings={"x": 4}))
    monkeypatch.delitem(sys.modules, "mine")  # as in a new process
    assert pickle.loads(sent).compute([]) == {"value": 8}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("mine.py", None, "does not exist"),
        ("mine.py", "x = 1\n", "has no STUDY = Study"),
        ("mine.py", "STUDY = 3\n", "has no STUDY = Study"),
        ("mine.py", "import no_such_module\n", "cannot be imported: ModuleNotFoundError: No module named"),
        ("mine.py", "def f(:\n", "cannot be imported: SyntaxError"),
        ("json.py", "STUDY = 3\n", "'json' is the name of another module, rename the file"),
        ("my-study.py", "STUDY = 3\n", "'my-study' is no name that Python can import, rename the file"),
        (
            "mine.py",
            "from scala_lab.study import Study\nSTUDY = Study('a b', '', '', None, None)\n",
            "the study's name 'a b' is part of file names",
        ),
    ],
)
def test_faulty_file_is_refused_in_one_sentence(tmp_path, monkeypatch, name, text, sentence):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=sentence):
        find_study(name)


@pytest.mark.parametrize("program", ["module", "file", "function"])
def test_module_as_a_program_is_the_command(program, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    name = "convergence"  # trains nothing, so that its plan is made at once
    reference = "mine.py" if program == "file" else name
    assert run_command(["study", reference, "--dry-run"]) == 0
    expected = capsys.readouterr().out
    assert expected
    monkeypatch.setattr(sys, "argv", ["program", "--dry-run"])
    if program == "function":
        code = main(find_study(name), ["--dry-run"])
    else:
        with pytest.raises(SystemExit) as end:
            if program == "module":
                monkeypatch.delitem(sys.modules, f"studies.{name}")  # a program starts without it
                runpy.run_module(f"studies.{name}", run_name="__main__", alter_sys=True)
            else:
                runpy.run_path("mine.py", run_name="__main__")
        code = end.value.code
    assert code == 0
    assert capsys.readouterr().out == expected


def spec(**values):
    return RunSpec.of(**{"task": "mini-qqp", "method": "scala", "lr": 1e-2, "threads": 1, "device": "cpu", **values})


@pytest.fixture
def records():
    return Records(runs={spec().run_id: synthetic(spec(), 90.0, seconds=4.0)})


def test_a_finished_run_is_a_row_of_percents_costs_and_labels(records):
    row = frame_of([Cell(spec(), task="qqp", method="ScaLA", seed=0)], records).iloc[0]
    assert (row["task"], row["method"], row["status"]) == ("qqp", "ScaLA", "finished")
    assert (row["score"], row["f1"], row["best_score"]) == pytest.approx((90.0, 87.0, 90.5))
    assert (row["dev_accuracy"], row["dev_f1"]) == pytest.approx((90.0, 87.0))
    assert (row["forward_passes"], row["train_seconds"], row["noise_start"]) == (23.0, 4.0, 5.0)
    assert (row["workers"], row["rate"]) == (1, 1e-2)
    assert row["divergence"] == pytest.approx(6e-2, rel=1e-3)
    assert [line["epoch"] for line in row["epochs"]] == [1, 2, 3, 4, 5, 6]


def test_tasks_with_one_metric_have_no_f1_and_runs_without_noise_no_divergence():
    plain = spec(task="mini-sst2", method="plain")
    row = frame_of([Cell(plain)], Records(runs={plain.run_id: synthetic(plain, 80.0)})).iloc[0]
    assert math.isnan(row["f1"])
    assert math.isnan(row["divergence"])
    assert math.isnan(row["noise_start"])


@pytest.mark.parametrize("status", ["diverged", "failed", "running", "missing"])
def test_a_run_that_did_not_finish_has_a_status_and_no_numbers(status):
    runs = {} if status == "missing" else {spec().run_id: synthetic(spec(), 0.0, status)}
    row = frame_of([Cell(spec(), seed=3)], Records(runs=runs)).iloc[0]
    assert (row["status"], row["seed"], row["id"]) == (status, 3, spec().run_id)
    assert all(math.isnan(row[name]) for name in ("score", "f1", "train_seconds", "forward_passes", "divergence"))


def test_a_label_takes_precedence_over_a_measured_column_of_the_same_name(records):
    row = frame_of([Cell(spec(), rate="middle")], records).iloc[0]
    assert row["rate"] == "middle"


def test_a_measurement_is_a_row_of_its_result(records):
    taken = Measurement(spec, (spec(),), {"samples": 8})
    records.measurements[taken.id] = {"id": taken.id, "status": "finished", "result": {"eigenvalue": 2.5}}
    frame = frame_of([Cell(spec(), kind="run"), Cell(taken, kind="curvature")], records)
    assert frame["eigenvalue"].tolist()[1] == 2.5
    assert frame["status"].tolist() == ["finished", "finished"]
    assert frame["id"].tolist() == [spec().run_id, taken.id]
