"""The learning rate's path; which parameters share a rate and which decay."""

from __future__ import annotations

import re

import pytest
import torch

from scala_lab.config import OptimSpec, RunSpec
from scala_lab.data.tasks import TASKS
from scala_lab.models.loading import load_classifier
from scala_lab.optim.build import (
    build_optimizer,
    default_rate,
    layer_names,
    parameter_groups,
    rate_factor,
    scaled_rate,
    undecayed_names,
)


def grouped(model, kind, adapt_all, optimizer):
    return parameter_groups(model, OptimSpec(optimizer=optimizer, groups=kind, adapt_all=adapt_all, weight_decay=0.01))


@pytest.mark.parametrize("total", [1, 2, 3, 10, 48, 1000])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
def test_rate_rises_to_one_once_and_is_never_zero(total, warmup):
    factors = [rate_factor(step, total, warmup) for step in range(total)]
    peak = factors.index(1.0)
    assert peak == min(round(warmup * total), total - 1)
    assert min(factors) > 0
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors.count(1.0) == 1


def test_ten_steps_by_hand():
    # W = 2: rises by thirds to step 2, then falls by eighths
    expected = [1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [rate_factor(step, 10, 0.2) for step in range(10)] == pytest.approx(expected)


def test_sum_is_that_of_two_triangles():
    # 1/(W+1) + ... + W/(W+1) = W/2, and 1/n + ... + n/n = (n+1)/2 for the n = total - W steps from the peak on
    total, rising = 200, 20
    assert sum(rate_factor(step, total, 0.1) for step in range(total)) == pytest.approx(
        rising / 2 + (total - rising + 1) / 2
    )


def test_scaling_rules_at_thirty_two_times_the_reference_batch():
    assert scaled_rate(1e-4, 1024, "none") == 1e-4
    assert scaled_rate(1e-4, 512, "sqrt") == pytest.approx(4e-4)
    assert scaled_rate(1e-4, 1024, "linear") == pytest.approx(3.2e-3)
    assert {scaled_rate(1e-4, 32, rule) for rule in ("none", "sqrt", "linear")} == {1e-4}


ARCHITECTURES = {
    "bert": {"encoder": "bert.encoder.layer", "layers": 2},
    "roberta": {"encoder": "roberta.encoder.layer", "layers": 2},
    "distilbert": {"encoder": "distilbert.transformer.layer", "layers": 2},
    "electra": {"encoder": "electra.encoder.layer", "layers": 2},
    "albert": {"encoder": "albert.encoder.albert_layer_groups", "layers": 1},
    "xlm-roberta": {"encoder": "roberta.encoder.layer", "layers": 2},
    "deberta": {"encoder": "deberta.encoder.layer", "layers": 2},
    "gpt2": {"encoder": "transformer.h", "layers": 2},
}
KINDS = [("adamw", "tensor"), ("lamb", "tensor"), ("lamb", "layer"), ("ngd", "tensor"), ("ngd", "layer")]


@pytest.fixture(scope="module")
def models():
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    common = {"vocab_size": 20, "max_position_embeddings": 16, "num_labels": 3}
    distil = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}
    return {
        name: transformers.AutoModelForSequenceClassification.from_config(
            transformers.AutoConfig.for_model(
                name,
                **common,
                **(distil if name == "distilbert" else sizes),
                **({"embedding_size": 4} if name in ("electra", "albert") else {}),
            )
        )
        for name in ARCHITECTURES
    }


def names_of(model, group):
    by_id = {id(param): name for name, param in model.named_parameters()}
    return [by_id[id(param)] for param in group["params"]]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("optimizer", "kind"), KINDS)
@pytest.mark.parametrize("adapt_all", [False, True])
def test_every_parameter_is_in_one_group_and_biases_and_norms_never_decay(
    models, architecture, optimizer, kind, adapt_all
):
    model = models[architecture]
    groups = grouped(model, kind, adapt_all, optimizer)
    placed = [name for group in groups for name in names_of(model, group)]
    order = [name for name, _ in model.named_parameters()]
    assert sorted(placed) == sorted(order)
    for group in groups:
        names = names_of(model, group)
        assert names == sorted(names, key=order.index)
        marks = group.get("decayed", [group["weight_decay"] > 0] * len(names))
        for name, decays in zip(names, marks, strict=True):
            exempt = name.endswith("bias") or re.search("layer_?norm|ln_", name, re.IGNORECASE) is not None
            assert decays != exempt, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_are_embeddings_then_blocks_then_head(models, architecture):
    model, facts = models[architecture], ARCHITECTURES[architecture]
    layers = layer_names(model)
    blocks = [f"{facts['encoder']}.{number}" for number in range(facts["layers"])]
    assert set(layers.values()) == {"embeddings", *blocks, "head"}
    assert [layer for layer in dict.fromkeys(layers.values()) if layer not in ("embeddings", "head")] == blocks
    assert all(layer == "embeddings" for name, layer in layers.items() if re.search(r"embedding|wte|wpe", name))
    assert all(layer == "head" for name, layer in layers.items() if re.search("classifier|pooler|score|ln_f", name))
    groups = grouped(model, "layer", False, "ngd")
    assert {group["name"] for group in groups} == {"embeddings", *blocks, "head"}
    assert all(group["joint"] for group in groups)


def test_lamb_adapts_biases_and_norms_only_on_request(models):
    model = models["bert"]
    exempt = undecayed_names(model)
    for kind in ("tensor", "layer"):
        plain = grouped(model, kind, False, "lamb")
        left_alone = {name for group in plain if not group.get("adapt", True) for name in names_of(model, group)}
        assert left_alone == exempt
        everything = grouped(model, kind, True, "lamb")
        assert all(group.get("adapt", True) for group in everything)


def test_fresh_classifier_moves_further_in_a_group_with_the_pretrained_pooler():
    """By tensor it moves by the rate times its own norm, which is small; the pooler moves the same either way."""
    moved = {}
    for groups in ("tensor", "layer"):
        model = load_classifier("embedded", TASKS["mini-mnli"])
        watched = {"pooler": model.bert.pooler.dense.weight, "classifier": model.classifier.weight}
        before = {name: weight.detach().clone() for name, weight in watched.items()}
        rng = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=rng)
        optim = RunSpec.of(method="lamb", groups=groups, weight_decay=0.0).resolved().optim
        build_optimizer(model, optim, lr=0.01).step()
        for name, weight in watched.items():
            moved[groups, name] = float((weight.detach() - before[name]).norm() / before[name].norm()) / 0.01
    assert moved["tensor", "classifier"] == pytest.approx(1.0, rel=1e-3)
    assert moved["tensor", "pooler"] == pytest.approx(1.0, rel=1e-3)
    assert moved["layer", "pooler"] == pytest.approx(1.0, rel=0.1)
    assert moved["layer", "classifier"] > 2


def test_frozen_parameters_are_left_out(models):
    model = models["distilbert"]
    frozen = model.distilbert.embeddings.word_embeddings.weight
    frozen.requires_grad_(False)
    try:
        for optimizer, kind in KINDS:
            groups = grouped(model, kind, False, optimizer)
            assert all(param is not frozen for group in groups for param in group["params"])
    finally:
        frozen.requires_grad_(True)


def test_norm_weights_are_found_by_module_type_not_by_name():
    class OddRMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2, 3))

    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.LayerNorm((2, 3)), torch.nn.RMSNorm((2, 3)), OddRMSNorm()
    )
    assert undecayed_names(model) == {"0.bias", "1.weight", "1.bias", "2.weight", "3.scale"}


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "ngd"])
def test_spec_reaches_the_optimizer(models, optimizer):
    spec = RunSpec.of(
        method="plain", optimizer=optimizer, weight_decay=0.5, beta1=0.8, beta2=0.95, max_weight_norm=7.0
    ).resolved()
    built = build_optimizer(models["bert"], spec.optim, lr=0.25)
    group = built.param_groups[0]
    assert type(built).__name__.lower() == optimizer
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.5)
    if optimizer != "ngd":
        assert group["betas"] == (0.8, 0.95)
        assert group["eps"] == {"adamw": 1e-8, "lamb": 1e-6}[optimizer]
    if optimizer != "adamw":
        assert group["max_weight_norm"] == 7.0


def test_default_rate_grows_with_the_root_of_the_batch_and_falls_with_width():
    assert default_rate("adamw", 384, 1024) == pytest.approx(1e-3, rel=0.01)
    assert default_rate("lamb", 384, 1024) == pytest.approx(2e-2, rel=0.01)
    for optimizer in ("adamw", "lamb", "ngd"):
        assert default_rate(optimizer, 384, 128) == pytest.approx(2 * default_rate(optimizer, 384, 32))
        assert default_rate(optimizer, 768, 32) < default_rate(optimizer, 384, 32) <= default_rate(optimizer, 64, 32)
    assert 2e-5 <= default_rate("adamw", 768, 32) <= 5e-5, "BERT's authors tuned BERT-base within this range"
