"""`converged` in the table of `scala-lab sharpness`, and its exit code, speak of all that was asked for."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.commands.sharpness import show_records
from scala_lab.curvature.checkpoint import all_converged
from tests.command_line import data_flags, flags, strict_json
from tests.tiny import save_tiny_model, write_rows

PART = {"eigenvalue": 2.0, "residual": 1e-4, "converged": True}
FINDING = {
    "checkpoint": "run",
    "task": "rows.csv",
    "samples": 12,
    "rows": "train",
    "solver": "lanczos",
    "tol": 1e-3,
    "eigenvalues": [3.0],
    "deviation": None,
    "residuals": [1e-4],
    "hvps": 9,
    "converged": True,
    "seconds": 1.0,
    "loss": 0.5,
    "smallest": PART,
    "trace": {"value": 7.0, "error": 0.1, "converged": True},
    "layers": {"head": PART, "embeddings": PART},
    "kappa_alpha": 1.0,
}


def doubted(finding: dict, *path: str) -> dict:
    """The finding with one of its parts not converged."""
    finding = copy.deepcopy(finding)
    part = finding
    for name in path:
        part = part[name]
    part["converged"] = False
    return finding


def last_cell(capfd: pytest.CaptureFixture[str], finding: dict) -> str:
    show_records([finding])
    lines = [line for line in capfd.readouterr().out.splitlines() if " run " in line and "0.5000" in line]
    return lines[0].split()[-2]


@pytest.mark.parametrize("path", [(), ("smallest",), ("trace",), ("layers", "embeddings")])
def test_one_part_that_has_not_converged_is_enough(capfd, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "200")
    assert all_converged(FINDING)
    assert last_cell(capfd, FINDING) == "yes"
    result = doubted(FINDING, *path)
    assert not all_converged(result)
    assert last_cell(capfd, result) == "NO"
    sets = {**FINDING, "sets": [FINDING, result]}
    assert not all_converged(sets), "in any of the sets"


def test_a_doubtful_trace_is_marked(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show_records([FINDING])
    assert "(?)" not in capfd.readouterr().out
    show_records([doubted(FINDING, "trace")])
    assert "7 ± 0.1 (?)" in capfd.readouterr().out
    show_records([doubted(FINDING, "layers", "head")])
    assert "1 (?)" in capfd.readouterr().out, "kappa_alpha is a quotient of the layers' eigenvalues"


def test_a_trace_has_as_many_products_as_a_solver(tmp_path, monkeypatch, capfd):
    """With few it is marked and the exit code is 1, with enough it converges."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    save_tiny_model(Path("model"), layers=1)
    write_rows(Path("rows.csv"), 24)
    for most, code in ((20, 1), (2000, 0)):
        file = Path(f"{most}.json")
        words = flags(samples=8, trace=True, tol=0.5, max_products=most, precision="float64", json=file)
        assert main(["sharpness", "model", *data_flags(Path("rows.csv")), *words]) == code
        (result,) = strict_json(file.read_text())
        assert result["converged"], "the eigenvalue has"
        assert result["trace"]["converged"] == (code == 0)
        assert result["trace"]["converged"] == (result["trace"]["error"] <= 0.05 * abs(result["trace"]["value"]))
        out = capfd.readouterr().out
        assert ("(?)" in out, " NO " in out) == (code == 1, code == 1)
