import os
from pathlib import Path

import numpy as np
import pytest

from scala_lab.config import DataSpec
from scala_lab.data.sources import load_task
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
