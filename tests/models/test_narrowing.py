from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.autograd import QuickLayers
from scala_lab.models.admission import random_twin
from scala_lab.models.fast_layers import Narrowing, narrowed, prove_narrowing
from tests.curvature.dense import tiny_batches, tiny_classifier
from tests.tiny import ARCHITECTURES


def widest_input(model, name):
    """Most tokens that a layer of that name saw in one call."""
    seen = []
    for full_name, module in model.named_modules():
        if full_name.endswith(name):
            module.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    return seen


LAST_FEED_FORWARD = {
    "bert": "layer.0.intermediate.dense",
    "roberta": "layer.0.intermediate.dense",
    "electra": "layer.0.intermediate.dense",
    "distilbert": "layer.0.ffn.lin1",
    "albert": "albert_layers.0.ffn",
}


def inputs_of(batch):
    return {name: value for name, value in batch.items() if name != "labels"}


def proved(model, inputs):
    twin = random_twin(model)
    return prove_narrowing(twin, lambda: twin(**inputs).logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_block_sees_one_token_and_the_logits_stay(tmp_path, architecture):
    model = tiny_classifier(tmp_path, architecture).eval()
    inputs = inputs_of(tiny_batches((6,))[0])
    narrowing = proved(model, inputs)
    # of query, key, value and output projection, the first and the last
    assert [expanded for _, expanded in narrowing.projections] == [True, False]
    with torch.no_grad():
        expected = model(**inputs).logits
        seen = widest_input(model, LAST_FEED_FORWARD[architecture])
        with narrowed(model, narrowing):
            assert torch.allclose(model(**inputs).logits, expected, rtol=1e-12, atol=1e-12)
    assert seen == [1]
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    assert hooks == len(seen)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_attention_is_computed_for_one_query(tmp_path, architecture):
    model = tiny_classifier(tmp_path, architecture).eval()
    inputs = inputs_of(tiny_batches((6,))[0])
    attention = torch.nn.functional.scaled_dot_product_attention
    queries = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is attention:
                queries.append(args[0].shape[-2])
            return function(*args, **(kwargs or {}))

    narrowing = proved(model, inputs)
    with torch.no_grad(), Watching(), narrowed(model, narrowing), QuickLayers([]):
        model(**inputs)
    assert queries[-1] == 1
    assert all(number == inputs["input_ids"].shape[1] for number in queries[:-1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("change", ["zero head", "large bias", "tiny weights"])
def test_weights_decide_nothing(tmp_path, architecture, change):
    """A head of zeros, an output bias of 1000 or weights of 1e-6 make all logits equal, but prove nothing."""
    model = tiny_classifier(tmp_path, architecture).eval()
    inputs = inputs_of(tiny_batches((6,))[0])
    expected = proved(model, inputs)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if change == "tiny weights":
                parameter.mul_(1e-6)
            elif "classifier" in name and change == "zero head":
                parameter.zero_()
            elif "classifier" in name and name.endswith("bias"):
                parameter.fill_(1000.0)
    assert proved(model, inputs) == expected
    assert not any("key" in call.module or "value" in call.module for call in expected.calls)


class Pooled(torch.nn.Module):
    """A block of two LayerNorms as in an encoder, under a head that reads tokens in its own way."""

    def __init__(self, pool):
        super().__init__()
        torch.manual_seed(0)
        self.pool = pool
        self.table = torch.nn.Embedding(40, 4)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(4) for _ in range(2))
        self.middle, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        self.double()

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, attention_mask):
        x = self.norms[0](self.table(input_ids) + self.table(input_ids).mean(1, keepdim=True))
        x = self.norms[1](x + self.middle(x).tanh())
        return type("Output", (), {"logits": self.head(self.pool(x, attention_mask))})()


POOLS = pytest.mark.parametrize(
    ("pool", "narrow"),
    [
        (lambda x, mask: x[:, 0], True),
        (lambda x, mask: x.mean(1), False),
        (lambda x, mask: x[:, 0] + 1e-13 * x.mean(1), False),  # below rounding of the logits, but not zero
        (lambda x, mask: x[:, -1], False),
        (lambda x, mask: x.amax(1), False),
        (lambda x, mask: x[torch.arange(len(x)), mask.sum(1) - 1], False),
    ],
)


@POOLS
def test_a_head_that_reads_other_tokens_gets_them(pool, narrow):
    model, (batch,) = Pooled(pool), tiny_batches((6,))
    op = HessianOperator(model, [batch])
    assert (op._loss.shortcuts.narrowing != Narrowing()) == narrow
    expected = functional.cross_entropy(model(**inputs_of(batch)).logits, batch["labels"]).item()
    assert op.loss() == pytest.approx(expected, rel=1e-12)


@POOLS
def test_rows_of_one_token_decide_nothing(pool, narrow):
    """With one token, every head reads the first one."""
    (long,) = tiny_batches((6,))
    short = {name: value if name == "labels" else value[:, :1] for name, value in long.items()}
    alike = {**long, "attention_mask": torch.ones_like(long["attention_mask"])}  # no padding tells the two apart
    model = Pooled(pool)
    assert proved(model, inputs_of(short)) == Narrowing()
    op = HessianOperator(model, [short, alike])
    losses = [
        functional.cross_entropy(model(**inputs_of(part)).logits, long["labels"]).item() for part in (short, alike)
    ]
    assert op.loss() == pytest.approx(sum(losses) / 2, rel=1e-12)
