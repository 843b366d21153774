"""Costs in forward passes: as the methods' cards count them, and over whole runs."""

from __future__ import annotations

import pytest

from scala_lab.config import RunSpec
from scala_lab.methods.cost import forward_passes, passes_per_sample


def spec(method, **values):
    return RunSpec.of(**{"method": method, "task": "mini-sst2", "lr": 1e-3, "threads": 1, "device": "cpu", **values})


@pytest.mark.parametrize(
    ("method", "options", "noisy"),
    [
        ("plain", {}, 3),  # forward 1, backward 2
        ("lamb", {}, 3),
        ("ngd", {}, 3),
        ("scala", {}, 8),  # clean 1, inner 1 + 1, adversarial 1, backward through both 4
        ("scala", {"pga_steps": 3}, 12),
        ("scala", {"precision": "bf16"}, 9),  # the label once more, in float32
        ("scala", {"precision": "bf16", "target": "GT"}, 8),
        ("scala-effective", {"precision": "bf16"}, 6),
        ("scala-effective", {}, 6),  # the clean backward gives the noise
        ("scala-effective", {"task": "mini-mnli"}, 7),  # three classes: one more pull through the clean graph
        ("scala-effective", {"pga": "exact"}, 8),
        ("gaussian", {}, 6),
        ("two-draws", {}, 6),
        ("rdrop", {}, 6),
        ("sam", {}, 6),  # both passes train
        ("asam", {"sam_m": 8}, 6),
        ("freelb", {}, 9),
        ("freelb", {"adv_passes": 5}, 15),
    ],
)
def test_passes_of_a_noisy_step(method, options, noisy):
    plain, passes = passes_per_sample(spec(method, **options))
    assert passes == noisy
    assert plain == (noisy if method in ("freelb", "sam", "asam") else 3)


def record(run, noised=0, skipped=0, steps=60, rows=1000):
    return {
        "spec": run.resolved().to_dict(),
        "samples": {"train": rows},
        "steps_done": steps,
        "counts": {"noised_samples": noised, "skipped_noise": skipped},
    }


def test_a_run_with_delay_5_of_6_costs_five_plain_epochs_and_a_noisy_one():
    assert forward_passes(record(spec("scala"), noised=1000)) == 5 * 3 + 8
    assert forward_passes(record(spec("scala", delay=0.0), noised=6000)) == 6 * 8
    assert forward_passes(record(spec("plain"))) == 18
    assert forward_passes(record(spec("freelb"))) == 54


def test_a_file_of_the_users_own_costs_by_the_outputs_that_its_run_had():
    run = {**record(spec("scala-effective", delay=0.0, task="own.csv"), noised=6000), "outputs": 3}
    assert forward_passes(run) == 6 * 7


def test_samples_whose_noise_was_left_out_cost_as_much():
    assert forward_passes(record(spec("scala"), noised=900, skipped=100)) == 23


def test_a_run_cut_short_costs_what_it_saw():
    assert forward_passes(record(spec("plain", max_steps=10, batch_size=100), steps=10)) == 3
