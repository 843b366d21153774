"""Parameters without a gradient are left alone, step by step, as by a plain loop over the stock model."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from scala_lab.cli import main
from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.training import preparation, trainer
from scala_lab.training.trainer import GradientBuffer, Training
from tests.command_line import interrupted_after, train_flags
from tests.tiny import write_rows
from tests.training.in_threads import both
from tests.training.plain_loop import plain_loop
from tests.training.recipe_runs import STEPS, make_training, recipe_spec


class Ignore(torch.autograd.Function):
    """Takes a weight and gives it no gradient."""

    @staticmethod
    def forward(ctx, weight, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


class Routed(nn.Module):
    """A head with eight experts, of which a row's third decimal chooses one, and two parts without a gradient."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head
        self.experts = nn.ModuleList(nn.Linear(head.in_features, head.out_features) for _ in range(8))
        self.spare = nn.Linear(head.in_features, head.out_features)
        self.ignored = nn.Linear(head.in_features, head.out_features)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Experts that no row asks for are not in the graph."""
        logits = self.head(features)
        choice = (features[:, 0] * 1000).long() % len(self.experts)
        for number in choice.unique():
            rows = (choice == number).nonzero()[:, 0]
            logits = logits.index_add(0, rows, self.experts[number](features[rows]))
        return Ignore.apply(self.ignored.weight, logits)


@pytest.fixture
def _routed(monkeypatch):
    """Have every run train a model with a routed head."""
    load = preparation.load_model

    def load_routed(spec, prepared):
        model, admission = load(spec, prepared)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model.classifier = Routed(model.classifier)
        return model, admission

    monkeypatch.setattr(trainer, "load_model", load_routed)


@pytest.fixture
def spec(tmp_path, tiny_bert):
    rows = write_rows(tmp_path / "rows.csv", 40)

    def of(method="plain", **changes) -> RunSpec:
        values = {"batch_size": 8, "micro_batch": 3, "clip_norm": 0.0, "weight_decay": 0.3}
        return recipe_spec(method, tiny_bert, rows, **values | changes)

    return of


@pytest.mark.parametrize("most", [0.3, 100.0])
def test_clipping_is_torch_s(most):
    ours, theirs = (nn.Linear(3, 2).double() for _ in range(2))
    buffer = GradientBuffer(ours.parameters())
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        right.grad = torch.arange(1.0, left.numel() + 1).double().view_as(left) / 4
        left.grad.copy_(right.grad)
    assert buffer.clip(most) == pytest.approx(float(nn.utils.clip_grad_norm_(theirs.parameters(), most)), rel=1e-12)
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-12, atol=0)


def by_our_loop(training: Training) -> tuple[dict[str, torch.Tensor], list[set[str]]]:
    """Weights after some steps, and which parameters this worker's own backward passes reached in each."""
    names = [name for name, _ in training.model.named_parameters()]
    reached = []
    for step in range(STEPS):
        training.accumulate(step)
        reached.append({name for name, mark in zip(names, training.gradient._marks, strict=True) if mark})
        training.update(step)
    assert all(parameter.grad is not None for parameter in training.model.parameters()), "only hidden for the update"
    return {name: value.detach().clone() for name, value in training.model.named_parameters()}, reached


def by_a_plain_loop(spec: RunSpec) -> tuple[dict[str, torch.Tensor], list[set[str]]]:
    """Weights after some steps of the stock model, and which parameters had a gradient in each."""
    training, reached = make_training(spec), []  # the trainer for its batches and rates
    model = trainer.load_model(spec, training.data)[0].double()

    def watch():
        reached.append({name for name, value in model.named_parameters() if value.grad is not None})

    plain_loop(model, training, STEPS, watch)
    return {name: value.detach() for name, value in model.named_parameters()}, reached


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text)


@pytest.mark.usefixtures("_routed")
@pytest.mark.parametrize("m", [3, None])
def test_sam_leaves_alone_what_no_sample_reaches(m, spec):
    """Groups and workers reach different experts; what none reaches neither moves in the ascent nor decays."""
    settings = {"method": "sam", "sam_m": m, "sam_rho": 0.5}
    start = dict(make_training(spec(**settings)).model.named_parameters())
    alone, reached = by_our_loop(make_training(spec(**settings)))
    for name in ("classifier.spare.weight", "classifier.ignored.weight"):
        assert not any(name in step for step in reached)
        assert alone[name].equal(start[name])
    for weights, _ in both(partial(make_training, spec(**settings, workers=2)), by_our_loop):
        assert_same(weights, alone)


@pytest.mark.usefixtures("_routed")
@pytest.mark.parametrize(
    "optimizer",
    [
        {"optimizer": "adamw"},
        {"optimizer": "lamb"},
        {"optimizer": "lamb", "groups": "layer", "adapt_all": True},
        {"optimizer": "ngd"},
    ],
    ids=["adamw", "lamb", "lamb by layer", "ngd"],
)
def test_training_is_a_plain_loop_also_for_parameters_that_few_batches_reach(optimizer, spec):
    expected, stock_reached = by_a_plain_loop(spec(**optimizer))
    experts = [f"classifier.experts.{number}.weight" for number in range(8)]
    assert any(0 < sum(name in step for step in stock_reached) < STEPS for name in experts), "some are reached at times"
    assert not any({"classifier.spare.weight", "classifier.ignored.weight"} & step for step in stock_reached)

    alone, reached = by_our_loop(make_training(spec(**optimizer)))
    assert reached == stock_reached
    assert_same(alone, expected)

    pair = both(partial(make_training, spec(**optimizer, workers=2)), by_our_loop)
    assert any(set(experts) & (left ^ right) for left, right in zip(pair[0][1], pair[1][1], strict=True)), (
        "there is a step in which only one worker's rows reach an expert"
    )
    for weights, _ in pair:
        assert_same(weights, expected)


@pytest.mark.usefixtures("_routed")
@pytest.mark.parametrize("method", ["plain", "lamb", "ngd", "scala-effective"])
def test_run_with_parameters_without_state_is_resumed_to_the_same_bits(method, tmp_path, monkeypatch, tiny_bert):
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    rows = write_rows(tmp_path / "rows.csv", 48)
    settings = {"method": method, "save_every": 0, "delay": 1.0 if method == "scala-effective" else None}
    assert main(train_flags(tiny_bert, rows, out="whole", **settings)) == 0
    with interrupted_after(5):
        assert main(train_flags(tiny_bert, rows, **settings)) == 130
    assert main(["train", "--out", "out", "--resume", "--no-tensorboard"]) == 0
    whole, resumed = (load_file(tmp_path / out / "checkpoint" / "model.safetensors") for out in ("whole", "out"))
    assert "classifier.spare.weight" in whole
    assert all(value.equal(resumed[name]) for name, value in whole.items())


def test_model_that_cannot_be_trained_in_one_buffer_is_refused():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameter"):
        GradientBuffer(frozen.parameters())
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    with pytest.raises(UserError, match="bfloat16 and float32"):
        GradientBuffer(mixed.parameters())
    mixed[1].requires_grad_(False)
    assert len(GradientBuffer(mixed.parameters()).parameters) == 2, "what is frozen may be in any precision"
