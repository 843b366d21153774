import os
from pathlib import Path

import datasets
import numpy as np
import pytest

from scala_lab.config import DataSpec
from scala_lab.data import glue
from scala_lab.data.sources import load_task
from scala_lab.data.tasks import TASKS
from scala_lab.errors import UserError

SHARED = Path(os.environ.get("SCALA_LAB_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "glue"

SST2 = "sentence\tlabel\ngood film\t1\nbad film\t0\n"


def load(task, folder):
    return load_task(DataSpec(task=task, data_dir=folder))


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_texts_and_labels_as_written(tmp_path):
    data = load("sst2", write(tmp_path, {"SST-2/train.tsv": SST2, "SST-2/dev.tsv": SST2}))
    assert data.train.first == ["good film", "bad film"]
    assert data.train.second is None
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.labels.dtype == np.int64
    assert list(data.evals) == ["dev"]
    assert data.skipped == {}


def test_byte_order_mark_carriage_returns_and_stray_quotes(tmp_path):
    rows = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t1\t2\t"He said\tit""s so\r\n0\t3\t4\tone\t"two"\r\n'
    data = load("mrpc", write(tmp_path, {"MRPC/train.tsv": rows, "MRPC/dev.tsv": rows}))
    assert data.train.first == ['"He said', "one"]
    assert data.train.second == ['it""s so', '"two"']
    assert data.train.labels.tolist() == [1, 0]


def test_only_a_line_feed_ends_a_line(tmp_path):
    rows = "sentence\tlabel\nline\u2028separator \x85 and\x0btab\t1\n\t0\n"
    data = load("sst2", write(tmp_path, {"SST-2/train.tsv": rows, "SST-2/dev.tsv": rows}))
    assert data.train.first == ["line\u2028separator \x85 and\x0btab", ""]


def test_cola_has_no_header(tmp_path):
    rows = "gj04\t1\t\tOur friends won.\nbc01\t0\t*\tWon friends our.\n"
    data = load("cola", write(tmp_path, {"CoLA/train.tsv": rows, "CoLA/dev.tsv": rows}))
    assert data.train.first == ["Our friends won.", "Won friends our."]
    assert data.train.labels.tolist() == [1, 0]


def test_columns_are_found_by_name_in_any_order(tmp_path):
    rows = "gold_label\textra\tsentence2\tsentence1\nneutral\tx\tb\ta\ncontradiction\tx\td\tc\n"
    data = load("mnli", write(tmp_path, {"MNLI/train.tsv": rows, "MNLI/dev_matched.tsv": rows}))
    assert (data.train.first, data.train.second) == (["a", "c"], ["b", "d"])
    assert data.train.labels.tolist() == [1, 2]
    assert list(data.evals) == ["dev_matched"]


def test_mnli_reads_mismatched_where_it_is_there(tmp_path):
    rows = "sentence1\tsentence2\tgold_label\na\tb\tneutral\n"
    files = {f"MNLI/{name}.tsv": rows for name in ("train", "dev_mismatched", "dev_matched")}
    assert list(load("mnli", write(tmp_path, files)).evals) == ["dev_matched", "dev_mismatched"]


def test_scores_are_float32(tmp_path):
    rows = "sentence1\tsentence2\tscore\na\tb\t3.8\n"
    data = load("stsb", write(tmp_path, {"STS-B/train.tsv": rows, "STS-B/dev.tsv": rows}))
    assert data.train.labels.dtype == np.float32
    assert data.train.labels[0] == np.float32(3.8)


def test_original_mrpc_files_are_never_mixed_with_glues_dev(tmp_path):
    rows = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\ta\tb\n"
    write(tmp_path, {"MRPC/msr_paraphrase_train.txt": rows, "MRPC/dev.tsv": rows})
    with pytest.raises(
        UserError, match=r"train\.tsv and dev\.tsv, or msr_paraphrase_train\.txt and msr_paraphrase_test"
    ):
        load("mrpc", tmp_path)
    write(tmp_path, {"MRPC/msr_paraphrase_test.txt": rows})
    assert list(load("mrpc", tmp_path).evals) == ["test"]


def test_one_malformed_row_in_a_thousand_is_skipped_and_counted(tmp_path):
    lines = ["question1\tquestion2\tis_duplicate", *(f"a{i}\tb{i}\t{i % 2}" for i in range(2000))]
    lines[5] = "cut short"
    lines[1500] = "one\ttoo\tmany\t1"
    text = "\n".join(lines) + "\n"
    files = {"QQP/train.tsv": text, "QQP/dev.tsv": "question1\tquestion2\tis_duplicate\na\tb\t1\n"}
    data = load("qqp", write(tmp_path, files))
    assert len(data.train) == 1998
    assert data.skipped == {"train.tsv": 2}
    assert data.train.first[3:5] == ["a3", "a5"]

    lines[1700] = "also cut short"
    write(tmp_path, {"QQP/train.tsv": "\n".join(lines) + "\n"})
    with pytest.raises(UserError, match=r"train\.tsv line 6 has 1 fields instead of 3, and 3 of 2000 rows"):
        load("qqp", tmp_path)


def test_a_label_after_skipped_rows_is_reported_with_its_own_line(tmp_path):
    lines = ["sentence\tlabel", *(f"text {i}\t1" for i in range(1000))]
    lines[5] = "no label"
    lines[700] = "text\t2"
    write(tmp_path, {"SST-2/train.tsv": "\n".join(lines), "SST-2/dev.tsv": SST2})
    with pytest.raises(UserError, match=r"train\.tsv line 701: label '2' in column 'label' is none of 0, 1"):
        load("sst2", tmp_path)


def test_rows_without_an_agreed_label_count_as_malformed(tmp_path):
    header = "sentence1\tsentence2\tgold_label\n"
    rows = header + "a\tb\t-\n" + "a\tb\tneutral\n" * 999
    write(tmp_path, {"MNLI/train.tsv": rows, "MNLI/dev_matched.tsv": header + "a\tb\tneutral\n"})
    assert load("mnli", tmp_path).skipped == {"train.tsv": 1}
    write(tmp_path, {"MNLI/dev_matched.tsv": header + "a\tb\tneutral\na\tb\t-\n"})
    with pytest.raises(UserError, match=r"dev_matched\.tsv line 3 has label '-'"):
        load("mnli", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"train\.tsv is empty"),
        ("\n\n", r"train\.tsv is empty"),
        ("sentence\tlabel\n", r"train\.tsv has a header but no rows"),
        ("text\tlabel\na\t1\n", r"no column 'sentence'; columns found: text, label"),
        ("sentence\tlabel\na\tmaybe\n", r"train\.tsv line 2: label 'maybe' in column 'label' is none of 0, 1"),
        (b"sentence\tlabel\nok\t1\ncaf\xe9\t1\n", r"train\.tsv line 3: byte 0xe9 at position 23 is not UTF-8"),
    ],
)
def test_faults_of_a_file(tmp_path, content, message):
    write(tmp_path, {"SST-2/train.tsv": content, "SST-2/dev.tsv": SST2})
    with pytest.raises(UserError, match=message):
        load("sst2", tmp_path)


@pytest.mark.parametrize("score", ["nan", "inf", "1e39", "high", ""])
def test_a_score_must_be_a_finite_number(tmp_path, score):
    rows = "sentence1\tsentence2\tscore\na\tb\t1.0\n"
    write(tmp_path, {"STS-B/train.tsv": f"{rows}a\tb\t{score}\n", "STS-B/dev.tsv": rows})
    with pytest.raises(UserError, match=rf"line 3: '{score}' in column 'score' is not a finite number"):
        load("stsb", tmp_path)


def test_missing_folders_and_files_say_what_is_there(tmp_path):
    with pytest.raises(UserError, match=r"data folder .*nowhere does not exist"):
        load("sst2", tmp_path / "nowhere")
    write(tmp_path, {"QNLI/train.tsv": "x"})
    with pytest.raises(UserError, match="no sub-folder 'SST-2' for sst2; found there: QNLI"):
        load("sst2", tmp_path)
    with pytest.raises(UserError, match=r"must hold train\.tsv and dev\.tsv; found there: train\.tsv"):
        load("qnli", tmp_path)


@pytest.mark.parametrize(
    ("task", "train", "evals"),
    [
        ("sst2", 67349, {"dev": 872}),
        ("stsb", 5749, {"dev": 1500}),
        ("qnli", 18869, {"dev": 5463}),
        ("mnli", 24739, {"dev_matched": 9815}),
        ("qqp", 42054, {"dev": 1000}),
    ],
)
@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder with real GLUE files is not here")
def test_row_counts_of_real_files(task, train, evals):
    data = load(task, SHARED)
    assert len(data.train) == train
    assert {name: len(rows) for name, rows in data.evals.items()} == evals
    if not data.task.regression:
        assert set(data.train.labels) == set(range(data.task.outputs))


SPLITS = {"mnli": ("train", "validation_matched", "validation_mismatched")}


@pytest.fixture(autouse=True)
def _own_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def hub_folder(folder, name, columns, feature, labels, splits=("train", "validation")):
    """A folder as the hub lays GLUE out: a sub-folder of parquet files per task, and a card that lists them."""
    features = datasets.Features({**dict.fromkeys(columns, datasets.Value("string")), "label": feature})
    (folder / name).mkdir(parents=True)
    card = ["---", "configs:", f"- config_name: {name}", "  data_files:"]
    for split in splits:
        texts = {column: [f"{split} {column} {row}" for row in range(len(labels))] for column in columns}
        rows = datasets.Dataset.from_dict({**texts, "label": labels}, features=features)
        rows.to_parquet(str(folder / name / f"{split}-00000-of-00001.parquet"))
        card += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return str(folder)


@pytest.mark.parametrize("name", ["sst2", "qnli", "mnli", "qqp", "mrpc", "rte", "cola"])
def test_classes_from_the_hub(tmp_path, monkeypatch, name):
    task = TASKS[name]
    columns = {"mnli": ("premise", "hypothesis"), "mrpc": ("sentence1", "sentence2")}.get(name, task.text_columns)
    feature = datasets.ClassLabel(names=list(task.labels))
    labels = [len(task.labels) - 1, 0, 1]
    splits = SPLITS.get(name, ("train", "validation"))
    monkeypatch.setattr(glue, "HUB_DATASET", hub_folder(tmp_path / "glue", name, columns, feature, labels, splits))
    data = load_task(DataSpec(task=name))
    assert data.train.labels.tolist() == labels
    assert data.train.labels.dtype == np.int64
    assert data.train.first == [f"train {columns[0]} {row}" for row in range(3)]
    if len(columns) == 2:
        assert data.train.second == [f"train {columns[1]} {row}" for row in range(3)]
    assert list(data.evals) == (["dev_matched", "dev_mismatched"] if name == "mnli" else ["dev"])
    assert data.evals[list(data.evals)[-1]].first[0] == f"{splits[-1]} {columns[0]} 0"


def test_scores_from_the_hub(tmp_path, monkeypatch):
    folder = hub_folder(tmp_path / "glue", "stsb", ("sentence1", "sentence2"), datasets.Value("float32"), [0.5, 5.0])
    monkeypatch.setattr(glue, "HUB_DATASET", folder)
    data = load_task(DataSpec(task="stsb"))
    assert data.train.labels.tolist() == [0.5, 5.0]
    assert data.train.labels.dtype == np.float32


def test_class_names_decide_not_their_order_on_the_hub(tmp_path, monkeypatch):
    feature = datasets.ClassLabel(names=["positive", "negative"])
    folder = hub_folder(tmp_path / "glue", "sst2", ("sentence",), feature, [0, 1])
    monkeypatch.setattr(glue, "HUB_DATASET", folder)
    data = load_task(DataSpec(task="sst2"))
    assert [data.task.labels[label] for label in data.train.labels] == ["positive", "negative"]


def test_an_unlabelled_row_on_the_hub_is_an_error(tmp_path, monkeypatch):
    feature = datasets.ClassLabel(names=["negative", "positive"])
    folder = hub_folder(tmp_path / "glue", "sst2", ("sentence",), feature, [0, -1])
    monkeypatch.setattr(glue, "HUB_DATASET", folder)
    with pytest.raises(UserError, match="row 1: -1 is not a label"):
        load_task(DataSpec(task="sst2"))


def test_without_the_hub_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(glue, "hub_reachable", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=r"--data-dir.*HF_HOME.*mini-sst2"):
        load_task(DataSpec(task="rte"))
    assert not datasets.config.HF_HUB_OFFLINE


def test_without_the_hub_an_earlier_download_is_used(tmp_path, monkeypatch):
    feature = datasets.ClassLabel(names=["entailment", "not_entailment"])
    folder = hub_folder(tmp_path / "glue", "rte", ("sentence1", "sentence2"), feature, [1, 0])
    datasets.load_dataset(folder, "rte")
    (built,) = (tmp_path / "cache").rglob("dataset_info.json")
    download = tmp_path / "cache" / "nyu-mll___glue" / "rte" / "0.0.0" / "0123456789abcdef"
    download.parent.mkdir(parents=True)
    built.parent.rename(download)
    monkeypatch.setattr(glue, "hub_reachable", lambda: False)
    data = load_task(DataSpec(task="rte"))
    assert data.train.labels.tolist() == [1, 0]
    assert data.evals["dev"].second == ["validation sentence2 0", "validation sentence2 1"]
