from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.quick_layers import QuickLayers
from scala_lab.models.encoder import Encoder
from scala_lab.models.first_token import FirstTokenOnly
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_block_sees_one_token_and_the_logits_stay(tmp_path, architecture):
    model = tiny_classifier(tmp_path, architecture).eval()
    inputs = {name: value for name, value in tiny_batches((6,))[0].items() if name != "labels"}
    first_token = FirstTokenOnly(model)

    def logits():
        with first_token.applied():
            return model(**inputs).logits

    with torch.no_grad():
        expected = logits()
        first_token.try_on(logits)
        assert len(first_token.projections) == 2  # of query, key, value and output, the first and the last
        seen = widest_input(model, LAST_FEED_FORWARD[architecture])
        assert torch.allclose(logits(), expected, rtol=1e-12, atol=1e-12)
    assert seen == [1]
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    assert hooks == len(seen)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_attention_answers_one_question(tmp_path, architecture):
    model = tiny_classifier(tmp_path, architecture).eval()
    inputs = {name: value for name, value in tiny_batches((6,))[0].items() if name != "labels"}
    first_token = FirstTokenOnly(model)
    attention = torch.nn.functional.scaled_dot_product_attention
    questions = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is attention:
                questions.append(args[0].shape[-2])
            return function(*args, **(kwargs or {}))

    def logits():
        with Watching(), first_token.applied(), QuickLayers([]):
            return model(**inputs).logits

    with torch.no_grad():
        first_token.try_on(logits)
        questions.clear()
        logits()
    assert questions[-1] == 1
    assert all(number == inputs["input_ids"].shape[1] for number in questions[:-1])


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
    ("pool", "narrowed"),
    [
        (lambda x, mask: x[:, 0], True),
        (lambda x, mask: x.mean(1), False),
        (lambda x, mask: x[:, -1], False),
        (lambda x, mask: x.amax(1), False),
        (lambda x, mask: x[torch.arange(len(x)), mask.sum(1) - 1], False),
    ],
)


@POOLS
def test_a_head_that_reads_other_tokens_gets_them(pool, narrowed):
    model, batches = Pooled(pool), tiny_batches((6,))
    op = HessianOperator(model, batches)
    assert (op._loss.first_token.norm is not None) == narrowed
    labels = batches[0]["labels"]
    inputs = {name: value for name, value in batches[0].items() if name != "labels"}
    expected = torch.nn.functional.cross_entropy(model(**inputs).logits, labels).item()
    assert op.loss() == pytest.approx(expected, rel=1e-12)


@POOLS
def test_rows_of_one_token_decide_nothing(pool, narrowed):
    """With one token, every head reads the first one."""
    (long,) = tiny_batches((6,))
    short = {name: value if name == "labels" else value[:, :1] for name, value in long.items()}
    alike = {**long, "attention_mask": torch.ones_like(long["attention_mask"])}  # no padding tells the two apart
    model = Pooled(pool)
    op = HessianOperator(model, [short, alike])
    inputs = [{name: value for name, value in batch.items() if name != "labels"} for batch in (short, alike)]
    losses = [functional.cross_entropy(model(**part).logits, long["labels"]).item() for part in inputs]
    assert op.loss() == pytest.approx(sum(losses) / 2, rel=1e-12)
    encoder = Encoder(model)
    for part in inputs:
        assert torch.allclose(encoder.predict(part), model(**part).logits, rtol=1e-12, atol=1e-12)
    assert (encoder._first_token.norm is not None) == narrowed
