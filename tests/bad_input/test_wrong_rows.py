"""Bad rows: one clear sentence, exit code 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scala_lab.cli import main
from tests.bad_input.mistakes import train
from tests.command_line import refuse

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
