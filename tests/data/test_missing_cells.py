"""What other tools write for a missing cell is no label and no text: the file, the row and the column are named."""

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


def load(path: Path, regression: bool = False):
    data = DataSpec(task=str(path), text_columns=("text",), label_column="label", regression=regression, eval_file=path)
    return load_task(data)


def write(path: Path, texts: list, labels: list) -> Path:
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
    path = write(tmp_path / f"data.{ending}", ["a", "b", "c"], [0.0, 1.0, math.nan])
    with pytest.raises(UserError, match=rf"data\.{ending} {unit} 3: column 'label' is empty \(nan\)"):
        load(path, regression)


@pytest.mark.parametrize("labels", [[0, 1, 0], ["x", "y", "x"]])
def test_nan_is_no_text(tmp_path, labels):
    path = write(tmp_path / "data.jsonl", ["a", math.nan, "c"], labels)
    with pytest.raises(UserError, match=r"data\.jsonl line 2: column 'text' is empty \(nan\)"):
        load(path)
    path = write(tmp_path / "data.parquet", [0.5, math.nan, 1.5], labels)
    with pytest.raises(UserError, match=r"data\.parquet row 2: column 'text' is empty \(nan\)"):
        load(path)


def test_nan_among_words_is_no_label(tmp_path):
    path = write(tmp_path / "data.jsonl", ["a", "b", "c"], ["x", math.nan, "y"])
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
    path = write(tmp_path / f"data.{ending}", ["a", "b", "c"], [0.0, number, 1.0])
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
