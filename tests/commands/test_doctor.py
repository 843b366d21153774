"""The doctor tells what is there, what is not, and never waits long."""

from __future__ import annotations

import importlib.util
import json
import threading

import torch

from scala_lab.cli import main
from scala_lab.commands import doctor as examination
from scala_lab.commands.doctor import Doctor, Finding, examine, run, within
from tests.processes import PATIENCE


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_report_names_versions_and_devices():
    found = by_name(examine())
    assert found["torch"] == Finding("package", "torch", "ok", torch.__version__)
    assert ("cuda:0" in found) == torch.cuda.is_available()
    assert found["gloo"].status == ("ok" if torch.distributed.is_gloo_available() else "absent")
    assert found["hub"].status == "absent", "the tests run with the hub switched off"


def test_missing_required_package_fails_with_what_to_do(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "sklearn" else real(name, *rest)
    )
    assert run(Doctor(json_=True)) == 1
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert found["scikit-learn"]["status"] == "missing"
    assert found["scikit-learn"]["advice"] == "pip install scikit-learn"


def test_missing_optional_package_is_no_failure(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "submitit" else real(name, *rest)
    )
    assert by_name(examine())["submitit"].status == "absent"


def test_without_torch_it_still_reports(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    found = by_name(examine())
    assert found["torch"].status == "missing"
    assert "flags" not in found


def test_question_without_an_answer_counts_as_no():
    let_go, answered = threading.Event(), threading.Event()

    def question():
        let_go.wait(PATIENCE)
        answered.set()
        return True

    assert within(0.05, question) is False
    assert not answered.is_set(), "it was waited for"
    let_go.set()
    assert within(PATIENCE, lambda: True) is True


def test_little_space_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 5e8})())
    finding = examination._disk("disk", tmp_path / "not" / "yet")
    assert finding.status == "absent"
    assert "0.5 GB free" in finding.value


def test_command_prints_a_table_with_every_finding(capsys):
    main(["doctor"])
    printed = capsys.readouterr().out
    for name in ("Python", "torch", "transformers", "embedded encoder", "cached models"):
        assert name in printed
