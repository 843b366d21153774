"""Precisions: near float32 where they round, with fp16's loss scale undone exactly, and refused where they are not."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from scala_lab.cli import main
from scala_lab.commands import doctor
from scala_lab.config import MachineSpec
from scala_lab.errors import UserError
from scala_lab.methods.recipes import RECIPES
from scala_lab.training import precision, trainer
from scala_lab.training.distributed import World
from scala_lab.training.precision import GROWTH_STEPS, LossScale, check_precision, matrix_products
from scala_lab.training.trainer import Training
from tests.command_line import interrupted_after, refuse, strict_json, train_flags
from tests.tiny import write_rows
from tests.training.in_threads import both
from tests.training.recipe_runs import ALONE, difference, flat_weights, make_training, recipe_spec


@pytest.fixture
def training(tmp_path, tiny_bert):
    """Makes the trainer of a short run in a precision."""
    rows = write_rows(tmp_path / "rows.csv", 40)

    def make(method: str, precision: str, world: World = ALONE) -> Training:
        return make_training(recipe_spec(method, tiny_bert, rows, precision=precision, workers=world.size), world)

    return make


def step(training: Training, number: int) -> tuple[float, torch.Tensor]:
    """The gradient's norm in a step, and the gradient as the optimizer saw it."""
    training.accumulate(number)
    norm, _ = training.update(number)
    return norm, training.gradient.gradients.clone()


# a product is rounded by 2^-11 in fp16 and 2^-8 in bf16; a few dozen of them in a row lie between input and gradient
@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 40 * 2**-11), ("bf16", 40 * 2**-8)])
@pytest.mark.parametrize("method", ["plain", "lamb", "scala-effective", "freelb"])
def test_few_steps_stay_near_those_of_float32(method, name, tolerance, training):
    exact, rounded = training(method, "float32"), training(method, name)
    for number in range(4):
        (norm, gradient), (rounded_norm, rounded_gradient) = step(exact, number), step(rounded, number)
        if number == 0:
            assert 0 < difference(rounded_gradient, gradient) < tolerance
        assert rounded_norm == pytest.approx(norm, rel=5 * tolerance)
    assert difference(flat_weights(rounded), flat_weights(exact)) < tolerance
    assert rounded.progress.skipped_steps == 0


@pytest.mark.parametrize("scale", [2.0**20, 2.0**-40])
@pytest.mark.parametrize("method", RECIPES)
def test_loss_scale_is_undone_to_the_last_bit_that_counts(method, scale, training):
    """Also where noise is made from gradients that the scale has entered."""
    plain, scaled = training(method, "float64"), training(method, "float64")
    scaled.loss_scale = LossScale(scale)
    for number in range(3):
        (_, gradient), (_, scaled_gradient) = step(plain, number), step(scaled, number)
        assert difference(scaled_gradient, gradient) < 1e-12


def test_overflow_skips_the_step_and_lowers_the_scale_until_it_fits(training):
    made = training("lamb", "fp16")
    made.loss_scale.value = 2.0**40
    before, norms = flat_weights(made), []
    for number in range(40):
        norm, _ = step(made, number % made.steps)
        norms.append(norm)
        if math.isfinite(norm):
            break
        assert flat_weights(made).equal(before), "a step that overflows changes nothing"
        assert made.loss_scale.value == 2.0 ** (39 - number)
        assert not made.optimizer.state_dict()["state"].get(0, {}).get("step", 0)
    assert 5 < len(norms) < 40
    assert not flat_weights(made).equal(before)
    fresh = training("lamb", "float32")
    assert norms[-1] == pytest.approx(step(fresh, (len(norms) - 1) % made.steps)[0], rel=0.02)


def test_scale_grows_after_many_steps_that_fit_and_gives_up_at_its_smallest():
    scale = LossScale(8.0)
    for _ in range(GROWTH_STEPS - 1):
        scale.observe(1.0)
    assert scale.value == 8.0
    scale.observe(1.0)
    assert (scale.value, scale.fitting) == (16.0, 0)
    for expected in (8.0, 4.0, 2.0, 1.0):
        scale.observe(float("inf"))
        assert (scale.value, scale.exhausted) == (expected, False)
    scale.observe(float("nan"))
    assert scale.exhausted


def test_overflow_of_one_worker_is_seen_by_all(training):
    def make(world):
        made = training("lamb", "fp16", world)
        if world.rank == 1:
            made.model.classifier.weight.register_hook(lambda gradient: gradient * torch.inf)
        return made

    def run(made):
        norms = [step(made, number)[0] for number in range(2)]
        return norms, made.loss_scale, flat_weights(made), made.gradient.describe_broken(norms[-1])

    before = flat_weights(training("lamb", "fp16"))
    for norms, scale, after, broken in both(make, run):
        assert not any(map(math.isfinite, norms))
        assert scale == LossScale(2.0**14)
        assert after.equal(before)
        assert broken == "worker 1: the gradient is not finite"


@pytest.fixture
def run(tmp_path, monkeypatch, tiny_bert):
    monkeypatch.chdir(tmp_path)
    rows = write_rows(tmp_path / "rows.csv", 48)
    return lambda **changes: main(train_flags(tiny_bert, rows, **changes))


def lines(out: str) -> list[dict]:
    return [strict_json(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]


def test_resumed_fp16_run_ends_at_the_same_bits_with_the_same_scales(run, monkeypatch, capfd):
    monkeypatch.setattr(precision, "GROWTH_STEPS", 2)
    monkeypatch.setattr(trainer, "LossScale", lambda value=2.0**30, **rest: LossScale(value, **rest))
    settings = {"precision": "fp16", "dropout": 0.1, "save_every": 0, "epochs": 8}
    assert run(out="whole", **settings) == 0
    said = capfd.readouterr()
    with interrupted_after(16):
        assert run(**settings) == 130
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    scales = [line["loss_scale"] for line in lines("whole")]
    assert scales == [line["loss_scale"] for line in lines("out")]
    skipped = [line["gradient_norm"] is None for line in lines("whole")]
    assert skipped[0]
    assert not all(skipped)
    assert [later < earlier for earlier, later in itertools.pairwise(scales)] == skipped[:-1]
    records = [strict_json(Path(out, "run.json").read_text()) for out in ("whole", "out")]
    assert records[0]["counts"] == records[1]["counts"]
    assert records[0]["counts"]["skipped_steps"] == sum(skipped)
    assert f"{sum(skipped)} steps whose gradient overflowed in fp16" in said.out
    assert "scale" in said.err
    files = [Path(out, "checkpoint/model.safetensors").read_bytes() for out in ("whole", "out")]
    assert files[0] == files[1]


def test_fp16_run_that_overflows_at_every_scale_has_diverged(run, capfd):
    assert run(precision="fp16", method="plain", lr=1e30, clip_norm=0, epochs=30) == 1
    found = json.loads(Path("out/run.json").read_text())
    assert found["status"] == "diverged"
    assert found["error"].endswith(f"not finite with a loss scale of 1 at step {found['steps_done']}")
    assert found["steps_done"] == 18, "one good step, then one for every scale from 2^16 down to 1"


def pretend_gpu(monkeypatch, capability: tuple[int, int]) -> None:
    """Have torch say that there is one GPU; bfloat16 can be emulated by any."""
    native = capability >= (8, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)


@pytest.mark.parametrize(
    ("capability", "there"),
    [((7, 5), {"float32", "fp16", "float64"}), ((8, 0), {"float32", "tf32", "bf16", "fp16", "float64"})],
)
def test_gpu_is_asked_what_it_has(capability, there, monkeypatch):
    pretend_gpu(monkeypatch, capability)
    for name in ("float32", "tf32", "bf16", "fp16", "float64"):
        if name in there:
            check_precision(MachineSpec(device="cuda", precision=name))
        else:
            sentence = rf"^--precision {name} (needs|is only emulated).*; this device has float32, fp16, float64$"
            with pytest.raises(UserError, match=sentence):
                check_precision(MachineSpec(device="cuda", precision=name))


def test_tf32_is_refused_on_the_cpu(tmp_path, monkeypatch, tiny_bert, capfd):
    monkeypatch.chdir(tmp_path)
    rows = write_rows(tmp_path / "rows.csv", 48)
    refuse(capfd, train_flags(tiny_bert, rows, precision="tf32", device="cpu"), "--precision tf32", "bf16, fp16")


def test_products_are_as_the_precision_says_and_then_as_before():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = True
        with matrix_products("tf32"):
            assert torch.get_float32_matmul_precision() == "high"
            assert torch.backends.cudnn.allow_tf32
        with pytest.raises(KeyError), matrix_products("float32"):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
            raise KeyError
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_a_run_has_exact_products_whatever_torch_was_told(run, monkeypatch):
    seen = set()
    update = Training.update

    def watch(self, number):
        seen.add(torch.get_float32_matmul_precision())
        return update(self, number)

    monkeypatch.setattr(Training, "update", watch)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert run(epochs=1) == 0
        assert seen == {"highest"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_doctor_shows_the_precisions_of_the_device():
    found = {finding.name: finding.value for finding in doctor._torch()}
    if torch.cuda.is_available():
        assert "fp16" in found["cuda:0"]
    else:
        assert found["precisions"] == "float32, bf16, fp16, float64"
