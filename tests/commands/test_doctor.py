"""The doctor tells what is there and what is not."""

from __future__ import annotations

import importlib.util
import json

import torch

from scala_lab.cli import main
from scala_lab.commands import doctor
from scala_lab.commands.doctor import Doctor, Finding, examine, run


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


def test_little_space_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 5e8})())
    finding = doctor._disk("disk", tmp_path / "not" / "yet")
    assert finding.status == "absent"
    assert "0.5 GB free" in finding.value


def test_command_prints_a_table_with_every_finding(capsys):
    main(["doctor"])
    printed = capsys.readouterr().out
    for name in ("Python", "torch", "transformers", "embedded encoder", "cached models"):
        assert name in printed
