"""Both sides of a comparison see the same rows, and their work is counted as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matmuls import BareMatmuls, token_layers, token_parameters
from turns import in_turns

from scala_lab import RunSpec
from scala_lab.data.tokens import Padding, collate
from scala_lab.timing.harness import forward_flops
from scala_lab.training.preparation import prepare


def test_turns_go_back_and_forth_and_the_first_rounds_are_dropped():
    order = []

    def side(name):
        return lambda number: order.append((name, number)) or float(number)

    seconds = in_turns({"a": side("a"), "b": side("b")}, rounds=2, warm_up=1)
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert seconds == {"a": [1.0, 2.0], "b": [1.0, 2.0]}


@pytest.fixture(scope="module")
def spec():
    values = {"method": "plain", "batch_size": 8, "train_samples": 32, "eval_samples": 8, "threads": 1}
    return RunSpec.of(**values).resolved()


@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize("padding", ["dynamic", "max length"])
def test_the_trainer_computes_our_loss_on_our_rows(spec, padding):
    from peers.trainer import TrainerSide

    peer, rows = TrainerSide(spec, 8, padding), np.arange(8)
    theirs = peer.collator([peer.rows[int(row)] for row in rows])
    ours = collate(prepare(spec).train, rows, Padding(prepare(spec).tokenizer.pad_token_id))
    columns = ours["input_ids"].shape[1]
    assert theirs["input_ids"].shape[1] == (columns if padding == "dynamic" else spec.data.max_length)
    assert torch.equal(theirs["input_ids"][:, :columns], ours["input_ids"])
    assert not theirs["attention_mask"][:, columns:].any()
    model = peer.model.eval()
    with torch.no_grad():
        losses = [float(model(**batch).loss) for batch in (theirs, ours)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # float32 sums over other shapes


def test_bare_products_are_the_models_own(spec):
    from scala_lab.training.preparation import load_model

    model, _ = load_model(spec, prepare(spec))
    layers = token_layers(model)
    matmuls = BareMatmuls(layers, [3, 5])
    assert matmuls.flops == pytest.approx(3 * 8 * forward_flops(model).coef[1])
    assert matmuls.rate() > 0
    weights = sum(inputs * outputs for inputs, outputs in layers)
    assert weights < token_parameters(model) < 1.05 * weights  # biases and LayerNorm


def test_a_sample_of_the_grid_stands_for_all_of_it():
    from grid import BATCH_SIZES, RATES, Options, grid, sample, scaled_up

    specs = grid(Options())
    chosen = sample(specs, every=4)
    assert len(specs) == len(RATES) * len(BATCH_SIZES) == 28
    assert {one.optim.lr for one in chosen} == set(RATES)
    assert {one.batches.batch_size for one in chosen} == set(BATCH_SIZES)
    seconds = {size: place + 1.0 for place, size in enumerate(BATCH_SIZES)}
    assert scaled_up(chosen, [seconds[one.batches.batch_size] for one in chosen], specs) == 7 * (1 + 2 + 3 + 4)


def test_slopes_are_exponents_and_only_one_thing_grows():
    from growth import GROWING, START, points, slope

    assert slope([1.0, 2.0, 8.0], [3.0, 3.0 * 2**1.5, 3.0 * 8**1.5]) == pytest.approx(1.5)
    for (against, value), point in points().items():
        name = GROWING[against][0]
        changed = {key for key in START if point[key] != START[key]}
        assert changed <= {name, "rows"}
        assert point[name] == value
        assert point["rows"] >= point["batch_size"]
