"""A crash leaves the old file or the new one."""

from __future__ import annotations

import json
import os

import pytest

from scala_lab.files import new_folder, write_json, write_text


def test_text_and_json_come_back(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "één\n")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "één\n"
    write_json(tmp_path / "a.json", {"b": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": [1, None]}


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_folder_appears_only_when_complete(tmp_path):
    target = tmp_path / "state"
    with new_folder(target) as folder:
        (folder / "one").write_text("1")
        assert not target.exists()
    assert (target / "one").read_text() == "1"
    with new_folder(target) as folder:
        (folder / "two").write_text("2")
        assert (target / "one").exists()
    assert sorted(path.name for path in target.iterdir()) == ["two"], "the new folder replaces the old one whole"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path):
    target = tmp_path / "state"
    with new_folder(target) as folder:
        (folder / "one").write_text("1")
    with pytest.raises(KeyboardInterrupt), new_folder(target) as folder:
        (folder / "two").write_text("2")
        raise KeyboardInterrupt
    assert [path.name for path in target.iterdir()] == ["one"]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
