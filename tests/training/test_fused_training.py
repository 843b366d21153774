"""Whole runs with the fused ascent beside the exact one."""

from __future__ import annotations

import json

import pytest

from scala_lab import train
from scala_lab.errors import UserError
from tests.tiny import write_rows
from tests.training.recipe_runs import recipe_spec


def run(tiny_bert, rows, folder, **values):
    settings = {"dropout": 0.1, "rho": 0.05, "omega": 0.05, "lr": 3e-3, "epochs": 4, "eval_file": None, **values}
    result = train(recipe_spec("scala-effective", tiny_bert, rows, **settings), folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return result, lines


def test_training_curves_agree(tiny_bert, tmp_path):
    """First order in a start of 1e-5: curves agree to 1e-3 of the loss; without noise they do not."""
    rows = write_rows(tmp_path / "rows.csv", 41)
    exact, exact_lines = run(tiny_bert, rows, tmp_path / "exact", pga="exact")
    fused, fused_lines = run(tiny_bert, rows, tmp_path / "auto")
    _, quiet_lines = run(tiny_bert, rows, tmp_path / "quiet", lambda_=0.0)
    assert [result.record["pga"] for result in (exact, fused)] == ["exact", "fused"]
    for name in ("loss", "divergence"):
        curves = [[line[name] for line in lines] for lines in (exact_lines, fused_lines)]
        assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    losses = [[line["loss"] for line in lines] for lines in (exact_lines, quiet_lines)]
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)


def test_fused_that_does_not_hold_is_refused_before_anything_is_written(tiny_bert, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 41)
    with pytest.raises(UserError, match="masks shared or off"):
        run(tiny_bert, rows, tmp_path / "run", pga="fused", masks="independent")
    assert not (tmp_path / "run").exists()
