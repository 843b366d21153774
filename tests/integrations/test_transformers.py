"""The drop-in for `transformers.Trainer`: our trainer's weights, Trainer's own features, and refusals."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback

from scala_lab.errors import UserError
from scala_lab.integrations.transformers import ROW, ScalaConfig, ScalaTrainer, SharpnessCallback, _in_groups
from scala_lab.methods.recipes import RECIPES
from tests.integrations.same_run import BOTH, STEPS, as_ours, drop_in, flat, settings, spec_of
from tests.processes import run
from tests.tiny import save_tiny_model, write_rows
from tests.training.recipe_runs import difference, make_training, take_steps

pytestmark = pytest.mark.long

EXACT = 1e-7
"""Adam divides by the root of v plus 1e-8: where a gradient is 0 in exact arithmetic, as that of a key's bias, rounding
of 1e-17 moves a weight by some 1e-9 of its rate a step. A wrong share or noise is off by more than 1e-3."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("inputs") / "model")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """39 rows: at B=16 the last step of an epoch has 7, and two processes do not get equally many."""
    return write_rows(tmp_path_factory.mktemp("inputs") / "rows.csv", 39)


@pytest.mark.parametrize("method", RECIPES)
def test_weights_are_those_of_our_trainer_with_and_without_accumulation(method, model, rows, tmp_path):
    training = make_training(spec_of(method, model, rows))
    start = flat(training.model)
    trained = {
        accumulation: flat(drop_in(training, tmp_path, rows_at_once, accumulation))
        for rows_at_once, accumulation in ((16, 1), (2, 8))
    }
    expected = take_steps(training, STEPS)
    assert difference(start, expected) > 1e-2
    for weights in trained.values():
        assert difference(weights, expected) < EXACT


def test_two_processes_train_the_weights_of_one(model, rows, tmp_path):
    """Under torchrun; the rows that the sampler repeats to fill up the last step count once."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([*torchrun, "-m", "tests.integrations.same_run", tmp_path, model, rows])
    found = load_file(tmp_path / "weights.safetensors")
    for method in RECIPES:
        expected = take_steps(make_training(spec_of(method, model, rows)), STEPS)
        for accumulation in (1, 8) if method in BOTH else (8,):
            assert difference(found[f"{method} {accumulation}"], expected) < EXACT, (method, accumulation)


def test_plain_is_stock_trainer_where_that_is_right_and_differs_where_it_accumulates(model, rows, tmp_path):
    """Stock Trainer's gradient is N times the mean where a model ignores num_items_in_batch; clipping shows it."""
    training = make_training(spec_of("plain", model, rows))
    stock = {}
    for rows_at_once, accumulation in ((16, 1), (2, 8)):
        trainer = as_ours(Trainer, training)(
            model=copy.deepcopy(training.model), **settings(training, tmp_path, rows_at_once, accumulation)
        )
        trainer.train()
        stock[accumulation] = flat(trainer.model)
    ours = flat(drop_in(training, tmp_path, 16, 1))
    assert difference(ours, stock[1]) < EXACT
    assert difference(ours, stock[8]) > 1e-4


def test_groups_of_samples_that_share_an_ascent_do_not_depend_on_the_batches(model, rows, tmp_path):
    training = make_training(spec_of("sam", model, rows, sam_m=5))
    cuts = [flat(drop_in(training, tmp_path, *cut)) for cut in ((16, 1), (2, 8))]
    expected = take_steps(training, STEPS)
    for weights in cuts:
        assert difference(weights, expected) < EXACT


def test_groups_are_cut_where_they_end():
    batches = [{"input_ids": torch.arange(start, start + 3)} for start in (0, 3, 6)]
    groups = [torch.cat([part["input_ids"] for part in group]).tolist() for group in _in_groups(batches, 4)]
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


class _Trained(ScalaTrainer):
    """Keeps what was logged."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lines = []

    def log(self, logs, *args, **kwargs):
        super().log(logs, *args, **kwargs)
        self.lines.append(logs)


def make_trainer(training, folder, config=None, kind=_Trained, **changes):
    own = {name: changes.pop(name) for name in ("callbacks", "compute_loss_func", "data_collator") if name in changes}
    arguments = settings(training, folder, 4, 4, **changes)
    config = {} if kind is Trainer else {"config": config or ScalaConfig(method="scala-effective", delay=1)}
    return as_ours(kind, training)(model=copy.deepcopy(training.model), **{**arguments, **own, **config})


@pytest.fixture
def training(model, rows):
    return make_training(spec_of("plain", model, rows, max_steps=6, epochs=2))


def test_the_log_has_the_mean_loss_and_the_divergence_from_the_first_noise_on(model, rows, tmp_path):
    ours = make_training(spec_of("scala-effective", model, rows, delay=1.0, max_steps=6, epochs=2))
    trainer = make_trainer(ours, tmp_path, ScalaConfig(**vars(ours.spec.recipe)), max_grad_norm=0.0)
    trainer.train()
    logged = [(line["loss"], line.get("divergence")) for line in trainer.lines if "loss" in line]
    assert [divergence is None for _, divergence in logged] == [True] * 3 + [False] * 3
    for step, (loss, divergence) in enumerate(logged):
        ours.accumulate(step)
        sums, count = ours.gradient.statistics(), len(ours.plan.global_batch(step))
        assert loss == pytest.approx(sums["loss"] / count, rel=1e-5)  # a float32 in Trainer
        if divergence is not None:
            assert divergence == pytest.approx(sums["divergence"] / sums["noised"], rel=1e-6)
        ours.update(step)


def test_a_resumed_training_ends_with_the_same_weights(training, tmp_path):
    """Radii are in units of the pretrained embeddings, which a checkpoint no longer has."""
    config = ScalaConfig(method="scala-effective", delay=0.5, radius_unit="embedding", omega=0.1, rho=0.1)
    whole = make_trainer(training, tmp_path / "whole", config, save_strategy="steps", save_steps=4)
    whole.train()
    resumed = make_trainer(training, tmp_path / "resumed", config)
    order = resumed._get_train_sampler

    def second_epoch(*args):
        sampler = order(*args)
        sampler.epoch = 0
        return sampler

    resumed._get_train_sampler = second_epoch
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert difference(flat(resumed.model), flat(whole.model)) < EXACT
    state = json.loads((tmp_path / "whole" / "checkpoint-4" / "scala_lab.json").read_text())
    assert state["embedding_norm"] == resumed._embedding_norm


def test_label_smoothing_is_trainers(training, tmp_path):
    stock = make_trainer(
        training, tmp_path, kind=Trainer, gradient_accumulation_steps=1, per_device_train_batch_size=16
    )
    stock.args.label_smoothing_factor = 0.2
    stock.label_smoother = _smoother(0.2)
    stock.train()
    ours = make_trainer(training, tmp_path, ScalaConfig(method="plain"), label_smoothing_factor=0.2)
    ours.train()
    plain = make_trainer(training, tmp_path, ScalaConfig(method="plain"))
    plain.train()
    assert difference(flat(ours.model), flat(stock.model)) < EXACT
    assert difference(flat(plain.model), flat(stock.model)) > 1e-3


def _smoother(epsilon):
    from transformers.trainer_pt_utils import LabelSmoother

    return LabelSmoother(epsilon=epsilon)


def test_batches_know_their_rows_whatever_the_collator(training, tmp_path):
    seen = []

    def collator(features):
        assert all(ROW not in feature for feature in features)
        return training_collator(features)

    training_collator = settings(training, tmp_path, 4, 4)["data_collator"]
    trainer = make_trainer(training, tmp_path, data_collator=collator)
    for batch in trainer.get_train_dataloader():
        for row, ids in zip(batch[ROW].tolist(), batch["input_ids"].tolist(), strict=True):
            length = int(training.data.train.lengths[row])
            assert ids[:length] == training.data.train.take([row]).ids.tolist()
            seen.append(row)
    assert sorted(seen) == list(range(39))
    assert trainer.data_collator is collator
    assert len(trainer.train_dataset) == 39
    assert ROW not in trainer.train_dataset[0]


def test_sharpness_callback_changes_nothing_and_logs_the_top_eigenvalue(training, tmp_path):
    from scala_lab.curvature import HessianOperator, top_eigenpairs

    callback = SharpnessCallback(every_steps=2, samples=39, tol=1e-4)
    watched = make_trainer(training, tmp_path / "watched", callbacks=[callback])
    left_alone = make_trainer(training, tmp_path / "alone")
    for trainer in (watched, left_alone):
        torch.manual_seed(0)
        np.random.seed(0)
        trainer.train()
    assert torch.equal(flat(watched.model), flat(left_alone.model))
    states = [trainer.optimizer.state_dict()["state"] for trainer in (watched, left_alone)]
    for kept, other in zip(*(state.values() for state in states), strict=True):
        assert all(torch.equal(torch.as_tensor(kept[name]), torch.as_tensor(other[name])) for name in kept)
    lines = [line for line in watched.lines if "sharpness" in line]
    assert len(lines) == 3
    loader = watched.get_train_dataloader()
    batches = [{name: value for name, value in batch.items() if name != ROW} for batch in loader]
    top = top_eigenpairs(HessianOperator(watched.model, batches), 1, 1e-6)
    assert lines[-1]["sharpness"] == pytest.approx(float(top.eigenvalues[0]), rel=1e-3)
    assert all(line["sharpness_residual"] <= 1e-4 for line in lines)
    assert lines[-1]["sharpness_products"] < lines[0]["sharpness_products"]


def test_sharpness_callback_logs_through_a_stock_trainer(training, tmp_path):
    trainer = make_trainer(training, tmp_path, kind=Trainer)
    trainer.add_callback(SharpnessCallback(trainer, samples=16))
    trainer.train()
    logged = [line for line in trainer.state.log_history if "sharpness" in line]
    assert [line["epoch"] for line in logged] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"neftune_noise_alpha": 5.0}, "NEFTune's noise"),
        ({"torch_compile": True}, "torch.compile would be ignored"),
        ({"compute_loss_func": lambda *_, **__: 0}, "a loss of your own"),
    ],
)
def test_what_cannot_be_combined_is_refused_in_a_sentence(changes, sentence, training, tmp_path):
    with pytest.raises(UserError, match=f"method 'scala-effective': .*{sentence}"):
        make_trainer(training, tmp_path, **changes)


def test_a_class_with_a_loss_of_its_own_is_refused(training, tmp_path):
    class Own(ScalaTrainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    with pytest.raises(UserError, match="your class overrides compute_loss"):
        make_trainer(training, tmp_path, kind=Own)


def test_noise_that_would_never_start_is_refused(training, tmp_path):
    trainer = make_trainer(training, tmp_path, ScalaConfig(delay=5))
    with pytest.raises(UserError, match=r"starts its noise after delay=5 epochs, and the last step begins after 1\.67"):
        trainer.train()


def test_an_option_that_the_method_lacks_is_refused(training, tmp_path):
    with pytest.raises(UserError, match="method 'lamb' has no option 'omega'"):
        make_trainer(training, tmp_path, ScalaConfig(method="lamb", omega=1.0))


def test_an_optimizer_of_ones_own_is_kept(training, tmp_path):
    arguments = settings(training, tmp_path, 4, 4)
    model = copy.deepcopy(training.model)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = ScalaTrainer(model=model, optimizers=(own, None), config=ScalaConfig(method="lamb"), **arguments)
    assert trainer.optimizer is own
    assert trainer.optimizer_cls_and_kwargs is None


class _Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True
        return control


def test_trainers_callbacks_stop_it(training, tmp_path):
    trainer = make_trainer(training, tmp_path, callbacks=[_Stop()])
    assert trainer.train().global_step == 1
