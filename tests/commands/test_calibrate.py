from __future__ import annotations

import json
from functools import partial

import pytest

from scala_lab.cli import main
from scala_lab.timing import calibration
from scala_lab.timing.calibration import Calibration
from tests.tiny import write_rows

pytestmark = pytest.mark.long


@pytest.fixture
def flags(tiny_bert, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 60)
    return ["--task", str(rows), "--text-columns", "text", "--label-column", "label", "--model", str(tiny_bert)]


def test_constants_are_written_and_projected_to_more_workers(flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(calibration, "_workers_per_host", lambda spec: 1)
    monkeypatch.setattr(calibration, "calibrate", partial(calibration.calibrate, seconds=0.02))
    file = tmp_path / "machine.json"
    assert main(["calibrate", *flags, "--batch-size", "256", "--out", str(file)]) == 0
    said = capsys.readouterr().out
    found = Calibration.from_dict(json.loads(file.read_text()))
    assert f"{found.gradient_bytes / 1e6:.1f} MB" in said
    lines = [line.split() for line in said.splitlines()]
    counts = [int(line[0]) for line in lines if line and line[0].isdigit()]
    assert counts == [2**power for power in range(11)]
    by_workers = {int(line[0]): line[1:] for line in lines if line and line[0].isdigit()}
    assert len(by_workers[32]) == 4  # two batch sizes, each with its unit
    assert len(by_workers[64]) == 2
    assert by_workers[512] == []


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--method", "freelb"], "not --method freelb"),
        (["--rate", "fast"], "a link's rate is a number"),
        (["--out", "."], "is a folder"),
    ],
)
def test_mistakes(flags, more, sentence, capsys):
    assert main(["calibrate", *flags, *more]) == 2
    assert sentence in capsys.readouterr().err
