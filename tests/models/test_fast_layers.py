"""Fast attention and dropout have torch's values or their rates; narrowing is proved and changes nothing."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.autograd import QuickLayers
from scala_lab.models.admission import random_twin
from scala_lab.models.encoder import Encoder
from scala_lab.models.fast_layers import (
    LEVELS,
    FastDropout,
    attention,
    narrowed,
    padding_mask,
    prove_narrowing,
    use_fast_dropout,
    use_own_attention,
)
from scala_lab.models.loading import load_classifier
from tests.curvature.dense import tiny_batches, tiny_classifier
from tests.models.test_encoder import TASK, batch, load
from tests.tiny import ARCHITECTURES, save_tiny_model

SAMPLES, HEADS, TOKENS, WIDTH = 3, 2, 5, 4
ENTRIES = 1_000_001


class Bidirectional(torch.nn.Module):
    is_causal = False


@pytest.fixture
def parts():
    torch.manual_seed(0)
    shape = (SAMPLES, HEADS, TOKENS, WIDTH)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@pytest.fixture
def mask():
    lengths = torch.tensor([5, 2, 3])
    return (torch.arange(TOKENS) < lengths[:, None])[:, None, None, :]


@pytest.mark.parametrize("kind", ["bool", "additive", "none"])
def test_without_dropout_attention_is_torchs_with_its_gradient(parts, mask, kind, monkeypatch):
    monkeypatch.setattr("scala_lab.models.fast_layers.fast_dropout", lambda values, rate: values)
    masks = {"bool": mask, "additive": torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf), "none": None}
    expected = functional.scaled_dot_product_attention(*parts, attn_mask=masks[kind], scale=0.3).transpose(1, 2)
    found, _ = attention(Bidirectional(), *parts, masks[kind], dropout=0.1, scaling=0.3)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    for ours, theirs in zip(*(torch.autograd.grad((x * weights).sum(), parts) for x in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_attention_weights_are_dropped_at_the_rate_and_the_others_scaled_up():
    torch.manual_seed(0)
    query, key = torch.randn(2, 200, 2, 10, 4).double()
    value = torch.eye(10).double().expand(200, 2, 10, 10)
    shares = torch.softmax(query @ key.transpose(2, 3) * 0.5, -1)
    found = attention(Bidirectional(), query, key, value, None, dropout=0.25, scaling=0.5)[0].transpose(1, 2)
    dropped = found == 0
    assert float(dropped.double().mean()) == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / found.numel()) ** 0.5)
    scale = LEVELS / (LEVELS - round(0.25 * LEVELS))
    torch.testing.assert_close(found[~dropped], shares[~dropped] * scale, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_attention_to_a_broadcast_query_is_computed_once(parts, mask, rate, monkeypatch):
    query, key, value = parts
    repeated = query[:, :, :1].expand(-1, -1, TOKENS, -1)
    queries = []
    kernel = functional.scaled_dot_product_attention
    baddbmm = torch.baddbmm
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda *a, **k: queries.append(a[0]) or kernel(*a, **k)
    )
    monkeypatch.setattr(torch, "baddbmm", lambda *a, **k: queries.append(a[1]) or baddbmm(*a, **k))
    found, _ = attention(Bidirectional(), repeated, key, value, mask, dropout=rate, scaling=0.3)
    assert [query.shape[-2] for query in queries] == [1]
    assert found.shape == (SAMPLES, TOKENS, HEADS, WIDTH)
    assert found.stride(1) == 0
    if not rate:
        expected = kernel(query[:, :, :1], key, value, attn_mask=mask, scale=0.3).transpose(1, 2)
        torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-12, atol=1e-12)


def test_causal_attention_stays_torchs_own(parts):
    module = torch.nn.Module()  # transformers takes modules that do not say for causal ones
    expected = functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(attention(module, *parts, None)[0], expected)
    torch.manual_seed(0)
    dropped = attention(module, *parts, None, dropout=0.5)[0]
    torch.manual_seed(0)
    torch.testing.assert_close(
        dropped, functional.scaled_dot_product_attention(*parts, is_causal=True, dropout_p=0.5).transpose(1, 2)
    )


def test_causal_attention_to_a_broadcast_query_differs_from_token_to_token(parts):
    query, key, value = parts
    repeated = query[:, :, :1].expand(-1, -1, TOKENS, -1)
    expected = functional.scaled_dot_product_attention(repeated, key, value, is_causal=True)
    torch.testing.assert_close(attention(torch.nn.Module(), repeated, key, value, None)[0], expected.transpose(1, 2))
    with QuickLayers([]):
        found = functional.scaled_dot_product_attention(repeated, key, value, is_causal=True)
    torch.testing.assert_close(found, expected)


def test_a_mask_that_is_more_than_padding_is_made_by_transformers():
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    sizes = {"batch_size": 2, "q_length": 3, "kv_length": 3, "allow_is_causal_skip": False, "dtype": torch.float64}
    real = torch.tensor([[True, True, False], [True, True, True]])
    padding = padding_mask(
        mask_function=bidirectional_mask_function, attention_mask=real, allow_is_bidirectional_skip=True, **sizes
    )
    assert padding.shape == (2, 1, 1, 3)
    assert torch.equal(padding == 0, real[:, None, None])
    causal = padding_mask(mask_function=causal_mask_function, attention_mask=real, **sizes)
    assert torch.equal(causal, (torch.ones(3, 3).bool().tril() & real[:, None]).unsqueeze(1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_takes_our_attention_and_its_checkpoints_do_not_know(tmp_path, architecture):
    folder = save_tiny_model(tmp_path / "model", architecture)
    stock, quick = load(folder), load(folder)
    use_own_attention(quick)
    assert quick.config._attn_implementation == "scala_lab"
    inputs = batch(folder)
    torch.testing.assert_close(quick(**inputs).logits, stock(**inputs).logits, rtol=0, atol=1e-13)
    saved = []
    for name, model in (("stock", stock), ("quick", quick)):
        model.save_pretrained(tmp_path / name)
        saved.append(json.loads((tmp_path / name / "config.json").read_text()))
    assert saved[0] == saved[1]
    assert load(tmp_path / "quick").config._attn_implementation == "sdpa"


def test_attention_that_was_chosen_is_kept(tmp_path):
    model = load(save_tiny_model(tmp_path / "model"))
    model.set_attn_implementation("eager")
    use_own_attention(model)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_training_step_has_the_mean_of_the_stock_models(tmp_path, architecture):
    """Over many draws of the masks, logits with dropout have the mean and the spread that the stock model has."""
    folder = save_tiny_model(tmp_path / "model", architecture)
    inputs = {name: value[:1].expand(64, -1) for name, value in batch(folder).items()}
    stock = load_classifier(str(folder), TASK, dropout=0.3).train()
    encoder = Encoder(load_classifier(str(folder), TASK, dropout=0.3).train())
    torch.manual_seed(0)
    with torch.no_grad():
        theirs = torch.cat([stock(**inputs).logits for _ in range(60)])
        ours = torch.cat([encoder.predict(inputs) for _ in range(60)])
    error = theirs.std(0) * (2 / len(theirs)) ** 0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error).all()
    assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.1)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_zeros_and_mean_are_those_of_the_rate(rate):
    torch.manual_seed(0)
    out = FastDropout(rate)(torch.ones(ENTRIES))
    deviation = (rate * (1 - rate) / ENTRIES) ** 0.5
    assert float((out == 0).double().mean()) == pytest.approx(rate, abs=5 * deviation + 1 / LEVELS)
    assert float(out.double().mean()) == pytest.approx(1.0, abs=5 * deviation / (1 - rate))
    drawn = round(rate * LEVELS) / LEVELS
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - drawn)], rel=1e-6)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 64])
def test_neighbours_are_independent(lag):
    torch.manual_seed(1)
    kept = (FastDropout(0.5)(torch.ones(ENTRIES)) != 0).double() - 0.5
    assert abs(float((kept[lag:] * kept[:-lag]).mean()) * 4) < 5 / ENTRIES**0.5


def test_each_of_the_four_entries_of_a_word_has_the_rate():
    torch.manual_seed(2)
    dropped = (FastDropout(0.1)(torch.ones(ENTRIES - 1)) == 0).double().view(-1, 4).mean(0)
    assert dropped.tolist() == pytest.approx([0.1] * 4, abs=5 * (0.09 / (ENTRIES // 4)) ** 0.5)


def test_seeding_torch_fixes_the_mask_and_the_gradient_has_the_same_one():
    values = torch.ones(7, 13, dtype=torch.float64, requires_grad=True)
    masks = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        out = FastDropout(0.3)(values)
        (gradient,) = torch.autograd.grad(out.sum(), values)
        assert torch.equal(gradient, out)
        masks.append(out)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_nothing_is_dropped_in_eval_mode_nor_at_rate_0():
    values = torch.randn(5, 5)
    assert torch.equal(FastDropout(0.5).eval()(values), values)
    assert torch.equal(FastDropout(0.0)(values), values)


def test_a_models_dropout_modules_become_fast_ones_and_keep_their_rate():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25), nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5)))
    use_fast_dropout(model)
    assert [type(module) for module in model.modules() if "Dropout" in type(module).__name__] == [
        *[FastDropout] * 2,
        nn.AlphaDropout,
    ]
    assert model[1].p == 0.25


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
    assert [expanded for _, expanded in narrowing] == [True, False, False]
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
    assert not any("key" in module or "value" in module for (module, _), _ in expected)


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
    assert bool(op._shortcuts.narrowing) == narrow
    expected = functional.cross_entropy(model(**inputs_of(batch)).logits, batch["labels"]).item()
    assert op.loss() == pytest.approx(expected, rel=1e-12)


@POOLS
def test_rows_of_one_token_decide_nothing(pool, narrow):
    """With one token, every head reads the first one."""
    (long,) = tiny_batches((6,))
    short = {name: value if name == "labels" else value[:, :1] for name, value in long.items()}
    alike = {**long, "attention_mask": torch.ones_like(long["attention_mask"])}  # no padding tells the two apart
    model = Pooled(pool)
    assert proved(model, inputs_of(short)) == ()
    op = HessianOperator(model, [short, alike])
    losses = [
        functional.cross_entropy(model(**inputs_of(part)).logits, long["labels"]).item() for part in (short, alike)
    ]
    assert op.loss() == pytest.approx(sum(losses) / 2, rel=1e-12)
