"""A folder to make mistakes in, and runs to make them with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scala_lab.cli import main
from tests.bad_input.mistakes import train
from tests.command_line import interrupted_after
from tests.tiny import write_rows


@pytest.fixture
def here(tmp_path, monkeypatch, tiny_bert) -> Path:
    """An empty current folder with its own token cache, a model `model` and rows `rows.csv`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALA_LAB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(tiny_bert, tmp_path / "model")
    write_rows(tmp_path / "rows.csv", 48)
    return tmp_path


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_bert) -> Path:
    """A finished run `done` and one interrupted at step 4, `broken`, of the model and rows that `here` has."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SCALA_LAB_CACHE", str(folder / "cache"))
        shutil.copytree(tiny_bert, "model")
        write_rows(folder / "rows.csv", 48)
        assert main(train(out="done")) == 0
        with interrupted_after(4):
            assert main(train(out="broken", save_every=0)) == 130
    return folder
