"""Which models are admitted, how they are run, and with what sentence the others are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from scala_lab.cli import main
from scala_lab.data.tasks import Task
from scala_lab.data.tokens import TokenSplit
from scala_lab.errors import UserError
from scala_lab.models import admission
from scala_lab.models.admission import admit
from scala_lab.models.architectures import save_tiny, tiny_classifier
from scala_lab.models.loading import check_rows, load_classifier
from scala_lab.training.train import train
from tests.tiny import write_rows
from tests.training.recipe_runs import make_training, recipe_spec

LENGTHS = (3, 5, 9, 4, 12, 7)


def make_rows(lengths=LENGTHS, seed=0):
    """Random words of the tiny vocabulary."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(24, 64, offsets[-1]).astype(np.int32)
    return TokenSplit(ids, offsets, None, np.zeros(len(lengths), np.int64))


def padded_with_one(model_type, **changes):
    model = tiny_classifier(model_type, **changes)
    model.config.pad_token_id = 1
    return model


@pytest.mark.parametrize(
    ("model_type", "side", "narrow"),
    [
        ("bert", "right", True),
        ("roberta", "right", True),
        ("llama", "right", False),  # reads its last token
        ("convbert", "none", True),  # its convolution reaches over the end of a row into the padding
        ("fnet", "none", True),  # mixes all positions, padding too
        ("doge", "none", False),  # chooses keys by a score, padding among them
    ],
)
def test_the_fastest_exact_settings_are_taken(model_type, side, narrow):
    admission = admit(padded_with_one(model_type), make_rows(), 1, model_type)
    assert admission.padding.side == side
    assert bool(admission.narrowing) == narrow
    assert admission.logit_difference < 1e-12
    assert admission.gradient_difference < 1e-10
    assert ("padded on the right" in admission.note) == (side == "none")


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_model_that_reads_its_last_position_is_padded_on_the_other_side(side):
    """The head takes the first or the last position, whatever is there; positions do not count."""

    class Ends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(64, 4), torch.nn.Linear(4, 2)

        def get_input_embeddings(self):
            return self.table

        def forward(self, input_ids, attention_mask):
            x = self.table(input_ids) + (self.table(input_ids) * attention_mask[..., None]).sum(1, keepdim=True)
            return type("Output", (), {"logits": self.head(x[:, 0 if side == "right" else -1].tanh())})()

    torch.manual_seed(0)
    assert admit(Ends(), make_rows(), 0, "ends").padding.side == side


def test_rows_of_one_length_are_tried_with_padding_all_the_same():
    assert admit(tiny_classifier("fnet"), make_rows((9,) * 6), 1, "fnet").padding.side == "none"


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("model_type", ["bert", "gpt2", "openai-gpt"])
def test_dropout_is_seen_by_what_the_model_does(model_type, dropout):
    """GPT-2 calls its rates resid_pdrop, embd_pdrop and attn_pdrop."""
    model = padded_with_one(model_type, dropout=dropout)
    assert admit(model, make_rows(), 1, model_type).stochastic == (dropout > 0)


def test_the_dropout_of_the_flag_is_set_by_every_name(tmp_path):
    folder = save_tiny(tmp_path / "gpt2", "gpt2", dropout=0.1)
    config = load_classifier(str(folder), Task("own", ("text",), "label", ("no", "yes")), dropout=0.3).config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.3, 0.3, 0.3)


def hooked(change):
    model = tiny_classifier("bert")
    calls = []
    model.classifier.register_forward_hook(lambda module, args, output: change(output, calls.append(0) or len(calls)))
    return model


REFUSED = {
    "two answers to one row": lambda: hooked(lambda output, call: output * torch.rand(1)),
    "depends on the rows that it was given before": lambda: hooked(lambda output, call: output * (1 + call // 3)),
    "cannot run it on a row of this task": lambda: hooked(lambda output, call: output @ output),
    "not one vector per token": lambda: tiny_classifier("ibert"),
    "does not look its word embeddings up in its own table": lambda: tiny_classifier("mbart"),
    "no table of word embeddings": lambda: tiny_classifier("perceiver"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_confirmed_is_refused_in_a_sentence(sentence):
    rows = make_rows()
    if "own table" in sentence:
        rows.ids[rows.offsets[1:] - 1] = 2  # every row ends as encoder-decoders want it
    with pytest.raises(UserError, match=sentence):
        admit(REFUSED[sentence](), rows, 1, "model")


def test_the_loss_of_a_decoder_does_not_depend_on_the_micro_batch(tmp_path):
    folder, rows = save_tiny(tmp_path / "gpt2", "gpt2"), write_rows(tmp_path / "rows.csv", 16)
    losses = []
    for micro_batch in (1, 64):
        training = make_training(recipe_spec("plain", folder, rows, micro_batch=micro_batch))
        training.accumulate(0)
        losses.append(training.gradient.statistics()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_trained_decoder_is_what_stock_transformers_loads_and_runs(tmp_path, capfd):
    """Saved with the pad token that it was given, so that the stock model and tokenizer give its predictions."""
    folder, rows = save_tiny(tmp_path / "gpt2", "gpt2"), write_rows(tmp_path / "rows.csv", 24)
    result = train(recipe_spec("plain", folder, rows, precision="float32", epochs=1, lr=1e-3), tmp_path / "run")
    assert result.record["admission"]["gradient_difference"] < 1e-9
    assert main(["evaluate", str(tmp_path / "run"), "--predictions", str(tmp_path / "found.jsonl")]) == 0
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    model = AutoModelForSequenceClassification.from_pretrained(result.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(result.checkpoint)
    texts = [line.split(",")[0] for line in rows.read_text().splitlines()[1:]]
    with torch.no_grad():
        expected = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    ours = torch.tensor([[row["output_0"], row["output_1"]] for row in found])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5 * float(expected.std()))


def test_sparse_attention_that_a_short_row_turns_off_is_refused():
    model = tiny_classifier("big_bird")
    check_rows(model, [make_rows((14, 3))], "model")
    with pytest.raises(UserError, match="more than 14 tokens"):
        check_rows(model, [make_rows((15, 3))], "model")
    model.config.attention_type = "original_full"
    check_rows(model, [make_rows((15, 3))], "model")


@pytest.mark.parametrize("stock", [torch.ones(2), torch.tensor([1.0, float("nan")]), None])
@pytest.mark.parametrize("ours", [torch.ones(2), torch.tensor([1.0, float("nan")]), None])
@pytest.mark.parametrize("last", [True, False])
def test_a_gradient_that_is_missing_or_nan_on_one_side_is_never_admitted(ours, stock, last):
    """Wherever it stands among the parameters: a later one that agrees does not hide it."""
    pair, equal = {"a": (ours, stock)}, {"b": (torch.ones(2), torch.ones(2))}
    both = {**equal, **pair} if last else {**pair, **equal}
    logits = torch.zeros(1, 2)
    outcomes = [(logits, {name: gradients[side] for name, gradients in both.items()}) for side in (0, 1)]
    fine = (ours is None) == (stock is None) and (ours is None or bool(torch.equal(ours, stock)))
    if fine:
        assert admission._differences(*outcomes) == (0.0, 0.0)
    else:
        with pytest.raises(UserError, match="the gradient of a differs by inf"):
            admission._differences(*outcomes)
