"""The folder of a run: whole at any moment, held by one process, with states and checkpoints bit for bit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from scala_lab.config import RunSpec
from scala_lab.data.tasks import Task
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json, write_text
from scala_lab.models.loading import load_classifier, load_tokenizer
from scala_lab.optim.build import build_optimizer
from scala_lab.training.run_dir import (
    RunWriter,
    check_folder,
    check_inputs,
    latest_state,
    load_state,
    locked,
    read_run,
    save_checkpoint,
    save_state,
)
from tests.command_line import snapshot, strict_json
from tests.processes import holding

SPEC = RunSpec.of(method="lamb", threads=1, device="cpu").resolved()


def record(**changes) -> dict:
    values = {
        "id": SPEC.run_id,
        "name": SPEC.name,
        "status": "running",
        "spec": SPEC.to_dict(),
        "fingerprints": {"data": "a", "model": "b"},
        "metrics": {},
        "steps": 10,
        "steps_done": 4,
        "skipped_rows": {},
    }
    return values | changes


@pytest.fixture
def failing_replace(monkeypatch):
    """Have the n-th os.replace from now on fail, as a kill or a full disk would."""
    replace = os.replace

    def fail_at(count: int) -> None:
        calls = iter(range(1, 1000))

        def fail(*arguments):
            if next(calls) == count:
                raise OSError("no space left")
            replace(*arguments)

        monkeypatch.setattr(os, "replace", fail)

    return fail_at


def test_record_comes_back(tmp_path):
    RunWriter(tmp_path / "run", record()).update(steps_done=5)
    found = read_run(tmp_path / "run")
    assert found.spec == SPEC
    assert found.record["steps_done"] == 5
    assert not found.ended
    assert read_run(tmp_path / "none") is None


def test_record_is_json_for_everybody(tmp_path):
    RunWriter(tmp_path, record()).update(metrics={"dev": {"accuracy": float("nan")}}, best=[float("inf"), 1.5])
    found = strict_json((tmp_path / "run.json").read_text())
    assert found["metrics"] == {"dev": {"accuracy": None}}
    assert found["best"] == [None, 1.5]


def test_failed_write_of_the_record_leaves_the_old_one(tmp_path, failing_replace):
    writer = RunWriter(tmp_path, record())
    writer.update(steps_done=5)
    before = snapshot(tmp_path)
    failing_replace(1)
    with pytest.raises(OSError, match="no space left"):
        writer.update(steps_done=6)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("write", [write_text, write_json])
def test_failed_rename_of_a_file_leaves_nothing_behind(tmp_path, failing_replace, write):
    failing_replace(1)
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path / "file", "text")
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize("call", [1, 2])
def test_failed_rename_of_a_folder_leaves_the_old_one(tmp_path, failing_replace, call):
    with new_folder(tmp_path / "checkpoint") as folder:
        (folder / "weights").write_text("old")
    before = snapshot(tmp_path)
    failing_replace(call)
    with pytest.raises(OSError, match="no space left"), new_folder(tmp_path / "checkpoint") as folder:
        (folder / "weights").write_text("new")
    assert snapshot(tmp_path) == before


def test_same_run_is_recognised_and_another_is_not(tmp_path):
    RunWriter(tmp_path, record()).update()
    assert check_folder(tmp_path, SPEC, resume=True).record["id"] == SPEC.run_id
    with pytest.raises(UserError, match=r"running at step 4 of 10: pass --resume"):
        check_folder(tmp_path, SPEC, resume=False)
    with pytest.raises(UserError, match=r"seed: 0 -> 1; |\(seed: 0 -> 1\)"):
        check_folder(tmp_path, SPEC.override(seed=1), resume=True)
    with pytest.raises(UserError, match="another version"):
        write_json(tmp_path / "run.json", record(id="made before"))
        check_folder(tmp_path, SPEC, resume=True)


@pytest.mark.parametrize("what", ["data", "model"])
def test_same_spec_on_other_inputs_is_another_run(tmp_path, what):
    RunWriter(tmp_path, record(status="finished")).update()
    found = check_folder(tmp_path, SPEC, resume=False)
    check_inputs(found, {"data": "a", "model": "b"})
    with pytest.raises(UserError, match=f"another {what}"):
        check_inputs(found, {"data": "a", "model": "b", what: "c"})


def test_folder_need_not_exist_and_may_hold_hidden_files(tmp_path):
    assert check_folder(tmp_path / "a" / "b", SPEC, resume=False) is None
    (tmp_path / ".lock").touch()
    assert check_folder(tmp_path, SPEC, resume=False) is None
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="not empty and holds no run"):
        check_folder(tmp_path, SPEC, resume=False)
    assert not (tmp_path / "a").exists(), "looking makes no folder"


def test_link_to_nowhere_is_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="--out takes a folder"):
        check_folder(tmp_path / "link", SPEC, resume=False)


def test_folder_without_write_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="cannot be written to"):
        check_folder(tmp_path / "run", SPEC, resume=False)


HOLDER = """
import sys
from pathlib import Path
from scala_lab.training.run_dir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_is_held_against_another_process_and_ends_with_it(tmp_path):
    holder = [sys.executable, "-c", HOLDER, tmp_path / "run"]
    refused = pytest.raises(UserError, match="another process is training")
    with holding(holder, "held"), refused, locked(tmp_path / "run"):
        pass
    with locked(tmp_path / "run"):
        pass


def log_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_log_goes_on_after_the_last_saved_step(tmp_path):
    writer = RunWriter(tmp_path, record())
    writer.start_log(0)
    for step in range(1, 6):
        writer.log({"step": step, "loss": float("nan")})
    writer.close()
    assert log_of(tmp_path) == [1, 2, 3, 4, 5]
    assert strict_json((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["loss"] is None
    writer.start_log(3)
    writer.log({"step": 4})
    writer.close()
    assert log_of(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", [b'{"step": 4', b"\x00\x00\n", b"[]\n", b'{"stp": 4}\n', b"\xff\n"])
def test_damaged_lines_are_cut_off(tmp_path, damage):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n' + damage)
    writer = RunWriter(tmp_path, record())
    writer.start_log(3)
    writer.log({"step": 4})
    writer.close()
    assert log_of(tmp_path) == [1, 2, 3, 4]


TASK = Task("own", ("text",), "label", ("no", "yes"))


def trained(model_folder: Path, optimizer: str, steps: int):
    """A model and its optimizer after a few steps along made-up gradients."""
    model = load_classifier(str(model_folder), TASK)
    spec = RunSpec.of(method="plain", optimizer=optimizer, threads=1).resolved()
    built = build_optimizer(model, spec.optim, 0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step_along(model, built, generator)
    return model, built, generator


def step_along(model, optimizer, generator) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "ngd"])
def test_restored_state_goes_on_bit_for_bit(tmp_path, tiny_bert, optimizer):
    model, built, generator = trained(tiny_bert, optimizer, 3)
    save_state(tmp_path, 3, model, built, {"steps_done": 3, "best": None})
    other, its_optimizer, _ = trained(tiny_bert, optimizer, 0)
    assert load_state(latest_state(tmp_path), other, its_optimizer) == {"steps_done": 3, "best": None}
    again = generator.clone_state()
    for _ in range(2):
        step_along(model, built, generator)
        step_along(other, its_optimizer, again)
    for (name, left), right in zip(model.named_parameters(), other.parameters(), strict=True):
        assert left.equal(right), name


def test_only_the_newest_state_is_kept(tmp_path, tiny_bert):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    assert latest_state(tmp_path) is None
    for step in (9, 10, 100_000_000):
        save_state(tmp_path, step, model, built, {})
        assert [path.name for path in tmp_path.iterdir()] == [f"{step:08d}"]
        assert latest_state(tmp_path).name == f"{step:08d}"
    assert latest_state(tmp_path / "none") is None


def test_failed_save_leaves_the_state_before(tmp_path, tiny_bert, monkeypatch):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {"steps_done": 1})
    before = snapshot(tmp_path)

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        save_state(tmp_path, 2, model, built, {"steps_done": 2})
    assert snapshot(tmp_path) == before


def test_half_a_state_is_not_taken_for_one(tmp_path, tiny_bert):
    """A kill while a state is written leaves its temporary folder."""
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {})
    (tmp_path / ".00000002.abc").mkdir()
    assert latest_state(tmp_path).name == "00000001"
    save_state(tmp_path, 3, model, built, {})
    assert [path.name for path in tmp_path.iterdir()] == ["00000003"], "the half one is cleared away"


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "position.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, None])
def test_damaged_state_is_refused_and_the_model_untouched(tmp_path, tiny_bert, name, share):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {"steps_done": 1})
    file = latest_state(tmp_path) / name
    content = file.read_bytes()
    file.unlink() if share is None else file.write_bytes(content[: int(share * len(content))])
    other, its_optimizer, _ = trained(tiny_bert, "lamb", 0)
    before = [parameter.detach().clone() for parameter in other.parameters()]
    with pytest.raises(UserError, match="cut short or damaged"):
        load_state(latest_state(tmp_path), other, its_optimizer)
    assert all(left.equal(right) for left, right in zip(before, other.parameters(), strict=True))


def test_state_of_another_model_is_refused(tmp_path, tiny_bert):
    model, built, _ = trained(tiny_bert, "lamb", 1)
    save_state(tmp_path, 1, model, built, {})
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="another model"):
        load_state(latest_state(tmp_path), model, built)


def test_checkpoint_holds_all_that_from_pretrained_needs(tmp_path, tiny_bert):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, _, _ = trained(tiny_bert, "lamb", 2)
    save_checkpoint(tmp_path / "checkpoint", model, load_tokenizer(str(tiny_bert)))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint")
    assert loaded.config.id2label == {0: "no", 1: "yes"}
    for (name, left), right in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert left.equal(right), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer("w3 w4")["input_ids"] == load_tokenizer(str(tiny_bert))("w3 w4")["input_ids"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert json.loads((tmp_path / "checkpoint/config.json").read_text())["model_type"] == "bert"
