"""A tiny encoder with dropout and a few rows, for sweeps of a few seconds."""

from __future__ import annotations

import pytest

from tests.tiny import save_tiny_model, write_rows


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(folder / "model", dropout=0.1), write_rows(folder / "rows.csv", 48)
