"""The audit finds what a gradient depends on, by what factor, and nothing where it depends on nothing."""

from __future__ import annotations

import json

import pytest

from scala_lab.cli import main
from scala_lab.errors import UserError
from scala_lab.integrations.audit import Subject, audit
from tests.command_line import refuse
from tests.tiny import save_tiny_model

pytestmark = pytest.mark.long

FROM_EMBEDDINGS = """
import torch
from transformers import Trainer

class FromEmbeddings(Trainer):
    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = dict(inputs)
        inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
        return model(**inputs).loss
"""


def found(subject, processes=False):
    """What each cut's gradient is, by its text."""
    return {finding.cut.text: finding for finding in audit(subject, processes)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("audit") / "bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A decoder whose tokenizer pads on the right, which reads the last real token."""
    from transformers import AutoTokenizer, GPT2Config, GPT2ForSequenceClassification

    folder = save_tiny_model(tmp_path_factory.mktemp("audit") / "gpt2", "distilbert")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 80}
    config = GPT2Config(vocab_size=len(tokenizer), num_labels=2, pad_token_id=tokenizer.pad_token_id, **sizes)
    GPT2ForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def test_stock_trainer_accumulates_n_times_the_mean(bert):
    findings = found(Subject(bert), processes=True)
    factors = {text: finding.factor for text, finding in findings.items() if finding.depends}
    exact = {
        "12 rows in 3 accumulated batches": 3,
        "12 rows one by one": 12,
        "4 rows in 2 batches, after a window of 3": 2,
    }
    for text, factor in exact.items():
        assert factors.pop(text) == pytest.approx(factor, rel=1e-9)
    assert findings["12 rows in one padded batch"].factor == pytest.approx(1, rel=1e-9)
    assert factors.pop("12 rows on 2 processes") == pytest.approx(2, rel=1e-9)  # its loss is times the processes
    assert factors.keys() == {"7 rows in batches of 4 and 3", "11 rows on 2 processes"}


@pytest.mark.parametrize("method", ["scala-effective", "freelb", "sam"])  # the weights of all are compared elsewhere
def test_our_drop_in_depends_on_nothing(method, bert):
    assert not [text for text, finding in found(Subject(bert, method=method)).items() if finding.depends]


def test_nor_does_it_with_processes_or_on_a_decoder(gpt2):
    findings = found(Subject(gpt2, method="scala"), processes=True)
    assert len(findings) == 8
    assert not [text for text, finding in findings.items() if finding.depends]


def test_decoder_that_reads_padding_is_found(gpt2, tmp_path):
    """From inputs_embeds transformers reads the last position, whatever stands there."""
    file = tmp_path / "own.py"
    file.write_text(FROM_EMBEDDINGS)
    findings = found(Subject(gpt2, file))
    assert findings["12 rows in one padded batch"].depends
    assert not findings["12 rows one by one"].depends
    assert not findings["1 row in 1 batch, after a window of 3"].depends


def test_command_prints_what_it_found_and_exits_by_it(bert, tmp_path, capsys):
    assert main(["audit", bert, "--no-processes", "--json", str(tmp_path / "found.json")]) == 1
    said = capsys.readouterr().out
    assert "transformers.Trainer: the gradient depends on micro-batch, uneven micro-batches, last window." in said
    records = json.loads((tmp_path / "found.json").read_text())
    assert [record["depends"] for record in records] == [False, True, True, True, True, False]
    assert main(["audit", bert, "--no-processes", "--method", "lamb"]) == 0
    assert "does not depend on the cut" in capsys.readouterr().out


def test_file_without_a_trainer_is_refused(bert, tmp_path):
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    with pytest.raises(UserError, match=r"empty\.py defines no subclass of transformers\.Trainer"):
        Subject(bert, file).trainer()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["audit"], "audit"),
        (["audit", "./nowhere"], "model folder ./nowhere does not exist"),
        (["audit", "embedded", "nowhere.py"], "nowhere.py does not exist"),
        (["audit", "embedded", "--method", "scalla"], "unknown method 'scalla': did you mean 'scala'?"),
        (["audit", "embedded", "mine.py", "--method", "scala"], "leave out the file, or leave out --method"),
    ],
)
def test_mistake_gets_one_sentence_and_leaves_nothing(args, sentence, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(capfd, args, sentence)
