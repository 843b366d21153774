"""Running a model from its word embeddings is running the model, for every architecture."""

from __future__ import annotations

import pytest
import torch

from scala_lab.config import RunSpec
from scala_lab.data.tasks import Task
from scala_lab.errors import UserError
from scala_lab.models.encoder import Encoder, eval_mode, replaced_embeddings
from scala_lab.models.loading import load_classifier, load_tokenizer
from scala_lab.training.train import train
from tests.command_line import own_rows
from tests.tiny import ARCHITECTURES, save_tiny_model, write_rows

TASK = Task("own", ("text",), "label", ("no", "yes"))
TEXTS = ["w1 w2 w3 w1", "w4", "w5 w1 w6 w7 w8 w9", "w10 w11"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / request.param, request.param)


def load(folder):
    return load_classifier(str(folder), TASK).double().eval()


def batch(folder, texts=TEXTS):
    return dict(load_tokenizer(str(folder))(texts, padding=True, return_tensors="pt"))


def test_logits_from_embeddings_are_the_logits_of_the_model(folder):
    inputs, encoder = batch(folder), Encoder(load(folder))
    expected = load(folder)(**inputs).logits
    assert expected.std() > 0.01, "the samples must differ for the test to mean anything"
    torch.testing.assert_close(encoder.logits(encoder.embed(inputs), inputs), expected, rtol=0, atol=0)
    torch.testing.assert_close(encoder.predict(inputs), expected, rtol=0, atol=0)


def test_noise_on_the_embeddings_reaches_the_logits(folder):
    encoder, inputs = Encoder(load(folder)), batch(folder)
    embeddings = encoder.embed(inputs)
    moved = encoder.logits(embeddings + 0.1 * torch.randn_like(embeddings), inputs)
    assert (moved - encoder.logits(embeddings, inputs)).abs().max() > 1e-3


def test_lookup_that_adds_in_place_has_the_stock_gradient(folder):
    """Twice through the table, as in a step with noise, on top of what an earlier micro-batch left there."""
    inputs, weight_of = batch(folder), lambda model: model.get_input_embeddings().weight
    stock, ours = load(folder), load(folder)
    encoder = Encoder(ours)
    earlier = torch.randn_like(weight_of(stock))
    for model in (stock, ours):
        weight_of(model).grad = earlier.clone()
    for scale in (1.0, 0.3):
        (stock(**inputs).logits.square().sum() * scale).backward()
        embeddings = encoder.embed(inputs)
        assert "InPlaceLookup" in type(embeddings.grad_fn).__name__, "the fast path is what is tested"
        (encoder.logits(embeddings, inputs).square().sum() * scale).backward()
    assert inputs["input_ids"].eq(stock.get_input_embeddings().padding_idx).any(), "there is padding in the batch"
    for (name, left), right in zip(stock.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(right.grad, left.grad, rtol=1e-12, atol=1e-12, msg=name)
    assert not torch.equal(weight_of(ours).grad, earlier)


def test_only_the_input_is_looked_up_elsewhere(folder):
    encoder, inputs = Encoder(load(folder)), batch(folder)
    table, ids, embeddings = encoder.model.get_input_embeddings(), inputs["input_ids"], encoder.embed(inputs)
    encoder.logits(embeddings, inputs)
    longer = torch.cat([ids, ids[:, :2]], dim=1)
    with replaced_embeddings(table, ids, embeddings + 1):
        assert torch.equal(table(longer), torch.cat([embeddings + 1, embeddings[:, :2]], dim=1))
    with pytest.raises(UserError, match="other word embeddings"), replaced_embeddings(table, ids, embeddings):
        table(ids.flip(0))
    never_asked = pytest.raises(UserError, match="does not look its word embeddings up")
    with never_asked, replaced_embeddings(table, ids, embeddings):
        pass
    assert "forward" not in vars(table)


def test_padding_row_gets_no_gradient_from_the_lookup(folder):
    model, inputs = load(folder), batch(folder)
    table = model.get_input_embeddings()
    table.weight.grad = torch.zeros_like(table.weight)
    embeddings = Encoder(model).embed(inputs)
    embeddings.sum().backward()  # every position counts here, padding too
    assert table.padding_idx == 0
    assert table.weight.grad[0].abs().sum() == 0
    counts = torch.bincount(inputs["input_ids"].flatten(), minlength=len(table.weight)).double()
    counts[0] = 0
    torch.testing.assert_close(table.weight.grad, counts[:, None].expand_as(table.weight))


def test_padding_does_not_change_logits(folder):
    model = load(folder)
    together = model(**batch(folder)).logits
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(model(**batch(folder, [text])).logits[0], together[row], rtol=0, atol=1e-12)


def test_eval_mode_is_for_the_block_only(folder):
    model = load_classifier(str(folder), TASK, dropout=0.5).train()
    encoder, inputs = Encoder(model), batch(folder)
    with torch.no_grad():
        with eval_mode(model):
            assert encoder.predict(inputs).equal(encoder.predict(inputs))
        assert model.training
        assert not encoder.predict(inputs).equal(encoder.predict(inputs))


def test_every_architecture_trains_with_noise(folder, tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 32)
    run = {"method": "scala-effective", "delay": 0.0, "epochs": 1, "batch_size": 8, "micro_batch": 4, "lr": 0.01}
    result = train(RunSpec.of(**own_rows(rows), model=str(folder), threads=1, **run), tmp_path / "run")
    assert result.status == "finished"
    assert result.record["counts"]["noised_samples"] == 32
    assert result.record["counts"]["skipped_noise"] == 0
    before, after = load(folder), load(tmp_path / "run")
    moved = [not left.equal(right) for left, right in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved), "every tensor was trained"
