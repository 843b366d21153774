"""The trainer's weights are those of a plain loop over the stock model, also where its shortcuts are easily fooled."""

from __future__ import annotations

import csv
import random

import pytest
import torch
import transformers

from scala_lab.methods.recipes import RECIPES
from scala_lab.models.loading import load_classifier
from tests.tiny import WORDS, save_tiny_model
from tests.training.plain_loop import plain_loop
from tests.training.recipe_runs import STEPS, make_training, recipe_spec, take_steps

METHODS = list(RECIPES)


def write(file, lengths, mean=None, seed=0):
    """Rows of these numbers of words; scores around a mean, or two classes."""
    rng = random.Random(seed)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        for row, length in enumerate(lengths):
            words = " ".join(rng.choice(WORDS) for _ in range(length))
            writer.writerow([words, row % 2 if mean is None else round(mean + rng.uniform(-2, 2), 3)])
    return file


def own_initialisation(folder, width=32, labels=2, **changes):
    """A tiny BERT as transformers initialises it, with the tokenizer of the other tests."""
    save_tiny_model(folder, labels=labels, hidden=width)
    config = transformers.AutoConfig.from_pretrained(folder, **changes)
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def spec_of(model, rows, method, **changes):
    # an eps at which Adam's steps do not hang on gradients that are zero but for rounding
    values = {"batch_size": 4, "micro_batch": 3, "epochs": 3, "lr": 0.01, "eps": 1e-3, **changes}
    if "pga" in RECIPES[method].option_values():
        values |= {"pga": "exact", "sigma": 0.05}  # a start at which the gradient of r is well above rounding
    return recipe_spec(method, model, rows, **values)


def largest_difference(spec):
    """Of any weight, relative to the largest move of any weight."""
    training = make_training(spec)
    prepared = training.data
    start = [parameter.detach().clone() for parameter in training.model.parameters()]
    take_steps(training)
    mean = float(prepared.train.labels.mean()) if prepared.task.regression else None
    stock = load_classifier(spec.encoder.model, prepared.task, seed=spec.seed, dropout=0.0, first_guess=mean).double()
    plain_loop(stock, training, STEPS)
    weights = [[weight.detach() for weight in model.parameters()] for model in (training.model, stock)]
    pairs = list(zip(*weights, start, strict=True))
    largest = max(float((theirs - before).abs().max()) for _, theirs, before in pairs)
    return max(float((ours - theirs).abs().max()) for ours, theirs, _ in pairs) / largest


UNEVEN = [7, 1, 3, 12, 2, 9, 5, 4, 11, 2, 6, 8, 1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mean", [0, 300, 2000])
def test_scores_far_from_zero(tmp_path, method, mean):
    """The output bias starts at the mean score: however large it is, no gradient is lost beside it."""
    model, rows = own_initialisation(tmp_path / "model", labels=1), write(tmp_path / "rows.csv", UNEVEN, mean)
    folder = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    weights = folder.state_dict()
    for name in ("classifier.weight", "classifier.bias"):
        del weights[name]  # a fresh head, which starts at the mean
    folder.save_pretrained(model, state_dict=weights)
    assert largest_difference(spec_of(model, rows, method, regression=True)) < 1e-9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [16, 32, 64])
def test_encoders_with_their_own_initialisation(tmp_path, method, width):
    model, rows = own_initialisation(tmp_path / "model", width), write(tmp_path / "rows.csv", UNEVEN)
    assert largest_difference(spec_of(model, rows, method)) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_a_head_of_zeros(tmp_path, method):
    model, rows = own_initialisation(tmp_path / "model"), write(tmp_path / "rows.csv", UNEVEN)
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    torch.nn.init.zeros_(classifier.classifier.weight)
    classifier.save_pretrained(model)
    assert largest_difference(spec_of(model, rows, method)) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_a_head_that_reads_the_mean_of_all_tokens(tmp_path, method):
    from scala_lab.models.architectures import save_tiny

    model = save_tiny(tmp_path / "model", "modernbert", classifier_pooling="mean")
    rows = write(tmp_path / "rows.csv", UNEVEN)
    assert largest_difference(spec_of(model, rows, method)) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_one_token(tmp_path, method):
    from scala_lab.models.architectures import save_tiny

    model, rows = save_tiny(tmp_path / "model", "gpt2"), write(tmp_path / "rows.csv", [1] * 9 + [4, 2, 1])
    assert largest_difference(spec_of(model, rows, method)) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_padding_on_the_left(tmp_path, method):
    """XLNet reads its last token and is padded on the left."""
    from scala_lab.models.architectures import save_tiny

    model, rows = save_tiny(tmp_path / "model", "xlnet"), write(tmp_path / "rows.csv", UNEVEN)
    assert largest_difference(spec_of(model, rows, method)) < 1e-9
