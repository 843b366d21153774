"""SAM and ASAM: the formula's gradient however a batch is cut, and weights that come back to the bit."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from scala_lab.batches import BatchPlan
from scala_lab.methods.recipes import RECIPES
from scala_lab.models.loading import load_classifier
from tests.methods.live_bytes import LiveBytes
from tests.methods.small import make_step
from tests.tiny import save_tiny_model, write_rows
from tests.training.in_threads import both
from tests.training.plain_loop import add_gradient
from tests.training.recipe_runs import ALONE, flat_weights, make_training, recipe_spec

ROWS, BATCH = 23, 14
"""Rows are of uneven length; the second step of an epoch has 9."""
METHODS, SIZES = ("sam", "asam"), (1, 4, 5, None)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.csv", ROWS)


def trainer(method, model, rows, world=ALONE, **changes):
    return make_training(recipe_spec(method, model, rows, batch_size=BATCH, workers=world.size, **changes), world)


def flat_gradients(training):
    """The gradients of an epoch's two steps at the first weights."""
    before, found = flat_weights(training), []
    for step in range(2):
        training.accumulate(step)
        found.append(training.gradient.gradients.clone())
        assert flat_weights(training).equal(before), "weights come back to the bit"
    return torch.stack(found)


@pytest.fixture(scope="module")
def reference(tiny_bert, rows):
    """The same by a plain loop over the stock model, one row at a time."""
    found = {}
    for method in METHODS:
        for m in SIZES:
            training, gradients = trainer(method, tiny_bert, rows, sam_m=m), []
            for step in range(2):
                stock = load_classifier(str(tiny_bert), training.data.task, dropout=0.0).double()
                add_gradient(stock, training, step)
                gradients.append(torch.cat([parameter.grad.flatten() for parameter in stock.parameters()]))
            found[method, m] = torch.stack(gradients)
    return found


def assert_close(found, expected, tolerance=1e-9):
    assert float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()) < tolerance


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_gradient_is_that_of_a_plain_loop_however_cut(method, m, tiny_bert, rows, reference):
    for micro_batch in (1, 3, 7, BATCH):
        training = trainer(method, tiny_bert, rows, micro_batch=micro_batch, sam_m=m)
        assert_close(flat_gradients(training), reference[method, m])
    for workers in (2, 3):
        make = partial(trainer, method, tiny_bert, rows, micro_batch=3, sam_m=m)
        for found in both(make, flat_gradients, workers):
            assert_close(found, reference[method, m])


def test_radius_and_groups_matter(reference):
    """The tests above would not notice an ascent that is left out, if it changed nothing."""
    found = [gradients.flatten() for gradients in reference.values()]
    for index, one in enumerate(found):
        assert all(float((one - other).norm() / one.norm()) > 1e-3 for other in found[:index])


def test_without_a_radius_it_is_the_plain_gradient(tiny_bert, rows):
    plain = flat_gradients(trainer("plain", tiny_bert, rows))
    for m in (5, None):
        assert_close(flat_gradients(trainer("sam", tiny_bert, rows, sam_m=m, sam_rho=0.0)), plain, 1e-12)


def test_groups_are_a_function_of_the_step_and_workers_get_whole_ones():
    lengths = np.random.default_rng(0).integers(4, 60, size=50)
    alone, three = (BatchPlan(lengths, 32, micro_batch=4, workers=workers, seed=2) for workers in (1, 3))
    groups = three.groups(1, 5)
    assert [len(group) for group in groups] == [5, 5, 5, 3]
    assert all(np.array_equal(*pair) for pair in zip(groups, alone.groups(1, 5), strict=True))
    assert all((np.diff(lengths[group]) <= 0).all() for group in groups)
    in_order = [set(group) for group in alone.groups(1, 1)]
    assert [set.union(*in_order[start : start + 5]) for start in (0, 5, 10, 15)] == [set(group) for group in groups]
    dealt = [group for rank in range(3) for group in three.deal_groups(groups, rank)]
    assert sorted(sorted(np.concatenate(group)) for group in dealt) == sorted(sorted(group) for group in groups)
    assert max(len(part) for group in dealt for part in group) <= 4


def test_ascent_has_the_length_of_the_formula():
    for adaptive in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2).double()
        for parameter in layer.parameters():
            parameter.grad = torch.randn_like(parameter)
        before = [parameter.detach().clone() for parameter in layer.parameters()]
        step = make_step("asam" if adaptive else "sam", sam_rho=0.3)
        assert step.perturb(list(layer.parameters()))
        moves = [parameter.detach() - start for parameter, start in zip(layer.parameters(), before, strict=True)]
        scales = [start.abs() + 0.01 if adaptive and start.ndim > 1 else 1.0 for start in before]
        length = torch.cat([(move / scale).flatten() for move, scale in zip(moves, scales, strict=True)]).norm()
        assert float(length) == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize("broken", [0.0, float("nan"), float("inf")])
def test_group_without_a_usable_gradient_is_not_perturbed_and_counted(broken, tiny_bert, rows):
    """Its gradient is then the plain one; other groups ascend all the same."""
    training = trainer("sam", tiny_bert, rows, micro_batch=BATCH, sam_m=5)
    perturb, calls = training.step_function.perturb, []

    def break_second(weights):
        calls.append(1)
        if len(calls) == 2:
            training.gradient.gradients.mul_(broken)
        return perturb(weights)

    object.__setattr__(training.step_function, "perturb", break_second)
    training.accumulate(0)
    assert len(calls) == 3
    sums = training.gradient.statistics()
    assert (sums["noised"], sums["skipped"]) == (9, 5)
    assert torch.isfinite(training.gradient.gradients).all()


def test_both_passes_have_the_same_dropout_masks(tmp_path, rows):
    """With the same masks and no radius the second pass repeats the first."""
    model = save_tiny_model(tmp_path / "model", dropout=0.3)
    plain, sam = (trainer(method, model, rows, dropout=0.3) for method in ("plain", "sam"))
    sam.step_function = dataclasses.replace(sam.step_function, sam_rho=0.0)
    assert_close(flat_gradients(sam), flat_gradients(plain), 1e-12)


def test_loss_of_a_step_is_that_at_the_weights_themselves(tiny_bert, rows):
    plain, sam = (trainer(method, tiny_bert, rows) for method in ("plain", "sam"))
    for training in (plain, sam):
        training.accumulate(0)
    for name in ("loss", "correct"):
        assert sam.gradient.statistics()[name] == pytest.approx(plain.gradient.statistics()[name], rel=1e-12)
    assert sam.gradient.statistics()["noised"] == BATCH


@pytest.mark.parametrize("m", [5, None])
@pytest.mark.parametrize("method", METHODS)
def test_memory_is_that_of_a_plain_step_and_copies_of_weights_and_gradient(method, m, tmp_path, rows):
    model = save_tiny_model(tmp_path / "model", hidden=64, layers=4)

    def peak(method, **changes):
        training = trainer(method, model, rows, micro_batch=BATCH, **changes)
        training.accumulate(0)
        known = [*training.model.parameters(), *training.model.buffers(), training.gradient.flat]
        with LiveBytes(known) as live:
            training.accumulate(0)
        return live.peak, training.gradient.flat.nbytes

    plain, weights = peak("plain")
    assert plain > weights
    assert peak(method, sam_m=m)[0] <= 1.1 * plain + 2 * weights


@pytest.mark.parametrize("method", METHODS)
def test_options_are_those_of_the_recipe(method):
    fields = {field.name for field in dataclasses.fields(make_step(method))}
    assert fields == set(RECIPES[method].option_values())
    assert make_step(method).sam_rho == {"sam": 0.05, "asam": 0.5}[method]
