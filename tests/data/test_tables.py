"""A user's own file, read strictly: the first fault is named with its file, row and column."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from scala_lab.config import DataSpec
from scala_lab.data.sources import load_task
from scala_lab.errors import UserError
from scala_lab.training.preparation import prepare_data
from tests.tiny import save_tiny_model

ROWS = [("good, very", "pos"), ('she said "no"', "neg"), ("two\nlines", "pos"), ("naïve", "neg")]


def load(path, text=("text",), label="label", **options):
    return load_task(DataSpec(task=str(path), text_columns=text, label_column=label, **options))


def all_rows(data):
    rows = [*zip(data.train.first, data.train.labels.tolist(), strict=True)]
    return sorted([*rows, *zip(data.evals["dev"].first, data.evals["dev"].labels.tolist(), strict=True)])


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("ending", [".csv", ".CSV", ".jsonl", ".parquet"])
def test_the_same_rows_from_every_format(tmp_path, ending):
    frame = pandas.DataFrame(ROWS, columns=["text", "label"])
    path = tmp_path / f"data{ending}"
    if ending.lower() == ".csv":
        frame.to_csv(path, index=False, encoding="utf-8-sig", lineterminator="\r\n")
    elif ending == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    data = load(path)
    assert data.task.labels == ("neg", "pos")
    assert all_rows(data) == sorted((text, int(label == "pos")) for text, label in ROWS)


def test_tsv_is_never_quoted(tmp_path):
    path = write(tmp_path / "data.tsv", 'text\tlabel\r\n"a\tx\r\nb"" c\ty\r\n')
    assert all_rows(load(path)) == [('"a', 0), ('b"" c', 1)]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "10", "9"], ("10", "9", "b")),
        ([2, 1, 0], ("0", "1", "2")),
        ([1.0, 0.0, 1.0], ("0", "1")),
        ([True, False, True], ("false", "true")),
    ],
)
def test_classes_are_sorted_by_value_or_by_spelling(tmp_path, labels, classes):
    lines = [json.dumps({"text": "a", "label": label}) for label in labels]
    assert load(write(tmp_path / "data.jsonl", "\n".join(lines))).task.labels == classes


def test_pairs_and_regression(tmp_path):
    path = write(tmp_path / "data.csv", "a,b,score\nx,y,1.5\nz,w,-2\n")
    data = load(path, text=("b", "a"), label="score", regression=True, eval_file=path)
    assert (data.train.first, data.train.second) == (["y", "w"], ["x", "z"])
    assert data.train.labels.dtype == np.float32
    assert data.evals["dev"].labels.tolist() == [1.5, -2.0]
    assert data.task.regression
    assert data.task.metrics == ("pearson", "spearman")


def test_a_seeded_tenth_is_kept_apart(tmp_path):
    path = write(tmp_path / "data.csv", "text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(57)))
    data, again, other = load(path), load(path), load(path, data_seed=1)
    assert len(data.evals["dev"]) == 5
    assert {text for text, _ in all_rows(data)} == {f"t{i}" for i in range(57)}
    assert not set(data.train.first) & set(data.evals["dev"].first)
    assert data.evals["dev"].first == again.evals["dev"].first != other.evals["dev"].first


def test_two_rows_leave_one_each(tmp_path):
    data = load(write(tmp_path / "data.csv", "text,label\na,0\nb,1\n"))
    assert (len(data.train), len(data.evals["dev"])) == (1, 1)


def test_a_cell_may_be_longer_than_the_csv_modules_limit(tmp_path):
    long = "word " * 40_000
    data = load(write(tmp_path / "data.csv", f"text,label\n{long},0\nb,1\n"))
    assert {text for text, _ in all_rows(data)} == {long, "b"}


QUOTED_NEWLINE = 'text,label\n"one\ntwo",0\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", "", r"d\.csv is empty"),
        ("d.csv", '""\n', r"d\.csv is empty"),
        ("d.csv", "text,label\n", r"d\.csv has no rows"),
        ("d.csv", "body,label\na,0\n", r"no column 'text'; columns found: body, label"),
        ("d.csv", "text,text,label\na,b,0\n", r"more than one column 'text'"),
        ("d.csv", QUOTED_NEWLINE + "three,1,extra\n", r"d\.csv line 4 has 3 fields instead of 2"),
        ("d.csv", QUOTED_NEWLINE + "\nthree\n", r"d\.csv line 5 has 1 fields instead of 2"),
        ("d.csv", QUOTED_NEWLINE + ",1\n", r"d\.csv line 4: column 'text' is empty"),
        ("d.csv", QUOTED_NEWLINE + "three,\n", r"d\.csv line 4: column 'label' is empty"),
        ("d.csv", QUOTED_NEWLINE + "three, \n", r"d\.csv line 4: column 'label' is empty"),
        (
            "d.csv",
            QUOTED_NEWLINE + '"never closed,1\nx,0\n',
            r"d\.csv line 4: the row that starts here is not valid CSV",
        ),
        ("d.csv", b"text,label\na,0\n\xff,1\n", r"d\.csv line 3: byte 0xff at position 15 is not UTF-8"),
        ("d.csv", "text,label\na,0\nb,0\n", r"holds only '0'; it takes at least two classes"),
        ("d.csv", "text,label\na,1.5\nb,2\n", r"holds numbers such as 1\.5; add --regression"),
        ("d.tsv", "text\tlabel\na\t0\nb\n", r"d\.tsv line 3 has 1 fields instead of 2"),
        ("d.jsonl", '{"text": "a", "label": 0}\n\n{"text": }\n', r"d\.jsonl line 3 is not JSON"),
        ("d.jsonl", '{"text": "a", "label": 0}\n["a", 1]\n', r"d\.jsonl line 2 is not a JSON object"),
        ("d.jsonl", '{"text": "a", "label": 0}\n{"text": "b"}\n', r"line 2 has no key 'label'; keys found: text"),
        ("d.jsonl", '{"text": "a", "label": 0}\n{"text": null, "label": 1}\n', r"line 2: column 'text' is empty"),
        ("d.jsonl", '{"text": ["a"], "label": 0}\n', r"line 1: column 'text' holds list, not text"),
        ("d.jsonl", '{"text": "\\ud800", "label": 0}\n', r"line 1: column 'text' holds half of a surrogate pair"),
        ("d.parquet", b"PAR1 and then nothing", r"d\.parquet cannot be read as parquet"),
        ("d.txt", "text,label\n", r"d\.txt must end in one of \.csv, \.tsv, \.jsonl, \.parquet"),
    ],
)
def test_faults_of_a_file(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        load(write(tmp_path / name, content))


def test_null_in_parquet_names_the_row(tmp_path):
    path = tmp_path / "data.parquet"
    pandas.DataFrame({"text": ["a", None], "label": [0, 1]}).to_parquet(path)
    with pytest.raises(UserError, match=r"data\.parquet row 2: column 'text' is empty"):
        load(path)
    with pytest.raises(UserError, match="no column 'body'; columns found: text, label"):
        load(path, text=("body",))


@pytest.mark.parametrize("score", ["high", "nan", "-inf"])
def test_a_score_must_be_a_finite_number(tmp_path, score):
    path = write(tmp_path / "data.csv", f"text,label\na,0.5\nb,{score}\n")
    with pytest.raises(UserError, match=rf"line 3: '{score}' in column 'label' is not a finite number"):
        load(path, regression=True)


def test_a_label_only_in_the_eval_file_names_its_line(tmp_path):
    train = write(tmp_path / "train.csv", "text,label\na,x\nb,y\n")
    dev = write(tmp_path / "dev.jsonl", '{"text": "a", "label": "x"}\n{"text": "a", "label": "z"}\n')
    with pytest.raises(UserError, match=r"dev\.jsonl line 2: label 'z' in column 'label' is none of x, y"):
        load(train, eval_file=dev)
    with pytest.raises(UserError, match=r"--eval-file .*gone\.csv does not exist"):
        load(train, eval_file=tmp_path / "gone.csv")


def test_columns_not_given_are_asked_for(tmp_path):
    path = write(tmp_path / "data.csv", "body,stars\na,1\n")
    with pytest.raises(UserError, match=r"needs --text-columns .*columns found: body, stars"):
        load(path, text=())
    with pytest.raises(UserError, match="needs --label-column; columns found: body, stars"):
        load(path, text=("body",), label=None)
    with pytest.raises(UserError, match="one or two columns, not 3"):
        load(path, text=("a", "b", "c"), label="stars")
    with pytest.raises(UserError, match="must be different columns"):
        load(path, text=("body",), label="body")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"gone\.csv does not exist"):
        load(tmp_path / "gone.csv")


def write_columns(path: Path, texts: list, labels: list) -> Path:
    """A file of these columns, with nan and infinity as the format spells them."""
    if path.suffix == ".jsonl":
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels}), path)
    return path


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("ending", "unit"), [("jsonl", "line"), ("parquet", "row")])
def test_nan_is_no_label(tmp_path, ending, unit, regression):
    path = write_columns(tmp_path / f"data.{ending}", ["a", "b", "c"], [0.0, 1.0, math.nan])
    with pytest.raises(UserError, match=rf"data\.{ending} {unit} 3: column 'label' is empty \(nan\)"):
        load(path, regression=regression)


@pytest.mark.parametrize("labels", [[0, 1, 0], ["x", "y", "x"]])
def test_nan_is_no_text(tmp_path, labels):
    path = write_columns(tmp_path / "data.jsonl", ["a", math.nan, "c"], labels)
    with pytest.raises(UserError, match=r"data\.jsonl line 2: column 'text' is empty \(nan\)"):
        load(path)
    path = write_columns(tmp_path / "data.parquet", [0.5, math.nan, 1.5], labels)
    with pytest.raises(UserError, match=r"data\.parquet row 2: column 'text' is empty \(nan\)"):
        load(path)


def test_nan_among_words_is_no_label(tmp_path):
    path = write_columns(tmp_path / "data.jsonl", ["a", "b", "c"], ["x", math.nan, "y"])
    with pytest.raises(UserError, match=r"line 2: column 'label' is empty \(nan\)"):
        load(path)


def test_nan_of_half_a_float_is_no_label(tmp_path):
    labels = pyarrow.array(np.array([0, 1, np.nan], np.float16))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"], "label": labels}), tmp_path / "data.parquet")
    with pytest.raises(UserError, match="row 3: column 'label' is empty"):
        load(tmp_path / "data.parquet")


@pytest.mark.parametrize("number", [math.inf, -math.inf])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_infinity_is_neither_class_nor_score(tmp_path, ending, number):
    path = write_columns(tmp_path / f"data.{ending}", ["a", "b", "c"], [0.0, number, 1.0])
    with pytest.raises(UserError, match=f"2: column 'label' holds {number}, which is no class"):
        load(path)
    with pytest.raises(UserError, match=f"2: {number} in column 'label' is not a finite number"):
        load(path, regression=True)


@pytest.mark.parametrize("spelling", ["nan", "NaN", "inf", "-Infinity"])
def test_spelled_nan_among_numbers_is_no_class(tmp_path, spelling):
    path = tmp_path / "data.csv"
    path.write_text(f"text,label\na,0\nb,1\nc,{spelling}\n")
    with pytest.raises(UserError, match=rf"data\.csv line 4: column 'label' holds {spelling} among numbers"):
        load(path)


def test_among_words_it_is_a_word(tmp_path):
    """`nan` is also the code of a language."""
    path = tmp_path / "data.csv"
    path.write_text("text,label\na,nan\nb,deu\nc,fra\n")
    assert load(path).task.labels == ("deu", "fra", "nan")


@pytest.mark.parametrize(
    "labels",
    [
        pandas.Series([0, 1, None]),
        pandas.Series(["x", "y", math.nan]),
        pandas.Series(["x", "y", pandas.NA], dtype="string"),
        pandas.array([0, 1, None], dtype="Int64"),
        pandas.to_datetime(["2020-01-01", "2021-01-01", None]),
    ],
    ids=["float", "object", "string", "Int64", "NaT"],
)
def test_missing_labels_of_pandas(tmp_path, labels):
    pandas.DataFrame({"text": ["a", "b", "c"], "label": labels}).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(UserError, match=r"data\.parquet row 3: column 'label' is empty"):
        load(tmp_path / "data.parquet")


@pytest.fixture
def without_specials(tmp_path) -> Path:
    """A model whose tokenizer puts nothing around a text, as those of decoders."""
    folder = save_tiny_model(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_rows_without_a_token(tmp_path, without_specials):
    """Where a tokenizer adds no token of its own, nothing is left of an empty text."""
    full = [{"text": f"w{row}", "label": row % 2} for row in range(6)]
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"

    def spoil(path: Path, *rows: int) -> None:
        lines = [{**row, "text": " " if number in rows else row["text"]} for number, row in enumerate(full)]
        path.write_text("".join(json.dumps(row) + "\n" for row in lines))

    def prepare(model: Path, **more: int):
        columns = {"text_columns": ("text",), "label_column": "label"}
        return prepare_data(DataSpec(task=str(train), eval_file=dev, **columns, **more), str(model))

    spoil(train), spoil(dev)
    assert prepare(without_specials).train.lengths.tolist() == [1] * 6
    spoil(dev, 3)
    with pytest.raises(UserError, match="no token of row 4 of the dev rows: give it a text"):
        prepare(without_specials)
    spoil(train, 1, 4)
    with pytest.raises(UserError, match="no token of row 2 of the train rows and of 1 more"):
        prepare(without_specials)
    spoil(dev)
    refused = 0
    for seed in range(8):  # rows that are not drawn are not read
        try:
            prepare(without_specials, train_samples=1, data_seed=seed)
        except UserError:
            refused += 1
    assert 0 < refused < 8
    assert prepare(save_tiny_model(tmp_path / "bert")).train.lengths.min() == 2
