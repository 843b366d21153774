"""The rule that starts the noise when the loss has settled: hand-made losses, and a run cut in the middle."""

from __future__ import annotations

import csv
import json

import pytest
from safetensors.torch import load_file

from scala_lab import RunSpec, train
from scala_lab.methods.base import Settling
from tests.command_line import interrupted_after, own_rows
from tests.tiny import WORDS, save_tiny_model


def first_settled(losses, steps_per_epoch):
    """The number of losses after which the rule says so, or None."""
    watch = Settling.over(steps_per_epoch)
    for count, loss in enumerate(losses, start=1):
        watch.observe(loss)
        if watch.settled:
            return count
    return None


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ([0.7, 0.6, 0.5, 0.4, 0.3], None),  # each window falls as far as the first: a quarter of the fall at the end
        ([0.7, 0.5, 0.4, 0.38, 0.37], 4),  # 0.02 of 0.32 is less than a tenth; 0.1 of 0.3 was not
        ([0.7, 0.7, 0.7, 0.7], None),  # flat because nothing was learned yet
        ([0.7, 0.69, 0.69, 0.69], None),  # fell by less than a twentieth
        ([0.7, 0.4, 0.5], 3),  # rose again
        ([0.7, 0.71, 0.5, 0.49], 4),
        ([0.7], None),
    ],
)
def test_windows_of_one_step(losses, wanted):
    assert first_settled(losses, steps_per_epoch=2) == wanted


def test_a_window_is_half_an_epoch_and_counts_when_it_is_full():
    losses = [0.8, 0.6, 0.5, 0.3, 0.38, 0.38, 0.39, 0.37]  # means 0.7, 0.4, 0.38, 0.38
    assert first_settled(losses, steps_per_epoch=4) == 6
    assert first_settled(losses[:5], steps_per_epoch=4) is None


def test_settled_stays_settled():
    watch = Settling.over(2)
    for loss in (0.7, 0.4, 0.4, 0.1, 0.0):
        watch.observe(loss)
    assert watch.settled
    assert watch.means == [0.7, 0.4, 0.4]


def test_state_survives_json_to_the_bit():
    whole, broken = Settling.over(6), Settling.over(6)
    losses = [1 / (3 + step) for step in range(17)]
    for step, loss in enumerate(losses):
        whole.observe(loss)
        broken.observe(loss)
        broken = Settling(**json.loads(json.dumps(vars(broken))))
        assert broken == whole, step


@pytest.fixture
def easy_run(tmp_path):
    """A run whose labels follow from one word, so that its loss falls and settles before t_s."""
    rows = tmp_path / "rows.csv"
    with rows.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        writer.writerows([f"{WORDS[row % 2]} {WORDS[2 + row % 11]}", row % 2] for row in range(96))
    model = str(save_tiny_model(tmp_path / "model", dropout=0.1))
    run = {"method": "scala", "delay_rule": "settled", "batch_size": 16, "micro_batch": 8, "epochs": 6, "lr": 0.03}
    return RunSpec.of(**own_rows(rows), model=model, threads=1, **run)


def test_noise_starts_when_the_loss_settles_and_resumed_runs_agree_to_the_bit(easy_run, tmp_path):
    whole = train(easy_run, tmp_path / "whole", save_every=0)
    start = whole.record["noise_start"]
    assert 0 < start < 5, "the run must settle before t_s for this test to say anything"
    assert whole.record["counts"]["noised_samples"] == round((6 - start) * 96)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert start == first_settled(losses, steps_per_epoch=6) / 6

    start_step = round(start * 6)
    cuts = (start_step - 2, start_step + 1)  # in the open window, and after the noise started
    for cut in cuts:
        with interrupted_after(cut), pytest.raises(KeyboardInterrupt):
            train(easy_run, tmp_path / "broken", save_every=0, resume=cut != cuts[0])
    broken = train(easy_run, tmp_path / "broken", save_every=0, resume=True)
    assert broken.record["noise_start"] == start
    assert broken.record["counts"] == whole.record["counts"]
    weights = [load_file(run.checkpoint / "model.safetensors") for run in (whole, broken)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())


def test_noise_starts_at_the_delay_when_the_loss_does_not_settle(easy_run, tmp_path):
    unlearned = train(easy_run.override(lr=1e-9, delay=2.0, epochs=3), tmp_path / "run")
    assert unlearned.record["noise_start"] == 2.0


def test_the_fixed_rule_does_not_look_at_the_loss(easy_run, tmp_path):
    fixed = train(easy_run.override(delay_rule="fixed", delay=5.0), tmp_path / "run")
    assert fixed.record["noise_start"] == 5.0
