"""A report finds its runs by id on another machine than the one that trained them."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from scala_lab.errors import UserError
from scala_lab.report.chapter import Manifest
from scala_lab.study.profiles import find_profile


def ids(profile):
    return [profile.spec(task, "lamb", 1024).run_id for task in profile.tasks]


def test_reads_what_it_wrote(tmp_path):
    manifest = Manifest("laptop", "glue", "models/a", True, "cpu", ("b", "mine.py"), "scala-lab study b mine.py")
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert Manifest.read(tmp_path / "elsewhere") is None


def test_ids_are_those_of_the_profile_and_survive_the_loss_of_the_model_folder(tmp_path):
    model = tmp_path / "encoder"
    model.mkdir()
    manifest = Manifest("laptop", str(tmp_path), str(model), model_is_folder=True)
    trained = ids(find_profile("laptop").with_data(tmp_path, str(model)))
    assert ids(manifest.load_profile()) == trained
    shutil.rmtree(model)
    assert ids(manifest.load_profile()) == trained
    assert ids(Manifest("laptop", None, "other").load_profile()) != trained


def test_ids_do_not_change_on_a_machine_with_another_device(monkeypatch):
    manifest = Manifest("embedded", device="cpu")
    before = ids(manifest.load_profile())
    monkeypatch.setattr("scala_lab.config.pick_device", lambda _: torch.device("cuda"))
    assert ids(find_profile("embedded")) != before or "device" in find_profile("embedded").settings
    assert ids(manifest.load_profile()) == before


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"studies": [], "profile": "a", "new": 1}'])
def test_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UserError, match=r"report.json is damaged or was written by another version"):
        Manifest.read(tmp_path)


def test_profile_that_is_gone_is_named(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"profile": "embeded", "studies": []}))
    with pytest.raises(UserError, match="unknown profile 'embeded': did you mean 'embedded'"):
        Manifest.read(tmp_path).load_profile()
