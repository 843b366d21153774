"""Tables as files: no digit lost in CSV, equal decimals down a column, nothing that Markdown or LaTeX would misread."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pandas as pd
import pytest

from scala_lab.report.tables import (
    NOTHING,
    column_texts,
    columns_of,
    csv_text,
    escape_latex,
    heading_groups,
    latex_text,
    markdown_text,
)
from scala_lab.study import Tabulation


def table(frame: pd.DataFrame, *notes: str) -> Tabulation:
    return Tabulation("", frame, "Table 2. Methods & rates", notes)


def test_csv_reads_back_to_the_same_numbers():
    frame = pd.DataFrame({"method": ["a, b", 'c "d"'], "score": [100 / 3, np.nan], "rate": [1e-5 / 3, 3e-2]})
    read = pd.read_csv(io.StringIO(csv_text(table(frame))), float_precision="round_trip")
    pd.testing.assert_frame_equal(read, frame, check_exact=True)


def test_named_index_becomes_columns_and_an_unnamed_one_does_not():
    runs = pd.DataFrame({"method": ["a", "b"] * 2, "task": ["x", "x", "y", "y"], "score": [1.0, 2.0, 3.0, 4.0]})
    pivot = runs.pivot_table("score", "method", "task")
    assert csv_text(table(pivot)).splitlines() == ["method,x,y", "a,1.0,3.0", "b,2.0,4.0"]
    assert csv_text(table(runs)).splitlines()[0] == "method,task,score"


def test_headings_of_several_levels_are_joined():
    frame = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("BERT", "time"), ("BERT", "acc")]))
    assert [column.heading for column in columns_of(table(frame))] == ["BERT time", "BERT acc"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([32, 1024], ["32", "1,024"]),
        ([32.0, 1024.0], ["32", "1,024"]),
        ([88.4123, 9.0], ["88.41", "9.00"]),
        ([1234.56, 0.5], ["1,235", "0"]),
        ([123.456, 0.5], ["123.5", "0.5"]),
        ([0.03125, 0.5], ["0.031", "0.500"]),
        ([3e-5, 0.001], ["3e-05", "0.001"]),
        ([1.234e-7, 5e-8], ["1.23e-07", "5.00e-08"]),
        ([-0.25, 0.125], ["-0.250", "0.125"]),
        ([math.nan, 2.125], [NOTHING, "2.12"]),
        ([math.inf, 1.5], ["inf", "1.5"]),
        ([None, "diverged", 88.25], [NOTHING, "diverged", "88.25"]),
        ([True, False], ["yes", "no"]),
        (["two\nlines"], ["two lines"]),
        ([], []),
    ],
)
def test_texts_of_a_column(values, texts):
    assert column_texts(values) == texts
    assert column_texts(list(np.array(values, dtype=object))) == texts


def test_numbers_stand_to_the_right_also_beside_words():
    frame = pd.DataFrame({"name": ["a", "b"], "score": [1.5, "diverged"]})
    assert markdown_text(table(frame)).splitlines()[3] == "| --- | ---: |"
    assert r"\begin{tabular}{@{}lr@{}}" in latex_text(table(frame), "x")


def test_a_pipe_or_backslash_makes_no_new_cell_in_markdown():
    frame = pd.DataFrame({"a|b": ["c|d", "e\\|f"], "n": [1, 2]})
    for line in markdown_text(table(frame)).splitlines()[2:]:
        unescaped = re.findall(r"(?<!\\)(?:\\\\)*\|", line)
        assert len(unescaped) == 3, line


def test_notes_stand_under_the_table_in_both():
    text = table(pd.DataFrame({"a": [1]}), "6 epochs", "edge: 5%")
    assert markdown_text(text).endswith("| 1 |\n\n6 epochs\n\nedge: 5%\n")
    assert latex_text(text, "x").index("bottomrule") < latex_text(text, "x").index(r"edge: 5\%")


SPECIAL = "\\ & % $ # _ { } ~ ^ < > | *"


def test_latex_reads_every_character_as_itself():
    escaped = escape_latex(SPECIAL)
    rest = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum)\{\}|\\ensuremath\{[<>|*]\}|\\[&%$#_{}]", "", escaped
    )
    assert rest.split() == []


def test_latex_row_has_as_many_cells_as_columns_whatever_is_in_them():
    frame = pd.DataFrame({"a & b": [SPECIAL, "[0, 1]"], "δ ± ε": [-1.5, 2.5]})
    lines = latex_text(table(frame), "t").splitlines()
    body = lines[lines.index(r"    \toprule") + 1 : lines.index(r"    \bottomrule")]
    rows = [line for line in body if line != r"    \midrule"]
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 1
        assert row.endswith(r" \\")
    assert "[" not in rows[2].strip()[:1]  # a bracket after \\ would be read as its option
    assert r"\ensuremath{-}1.5" in rows[1]
    assert escape_latex("δ ± ε").isascii()


def test_columns_of_a_wide_table_that_share_their_first_word_stand_under_it():
    frame = pd.DataFrame(
        [{f"{task} {what}": 1.0 for task in ("a_b", "c") for what in ("time", "score", "steps", "f1")}]
    )
    frame.insert(0, "batch size", 32)
    lines = latex_text(table(frame), "x").splitlines()
    start = lines.index(r"    \toprule")
    assert lines[start + 1 : start + 4] == [
        r"     & \multicolumn{4}{c}{a\_b} & \multicolumn{4}{c}{c} \\",
        r"    \cmidrule(lr){2-5}\cmidrule(lr){6-9}",
        r"    batch size & time & score & steps & f1 & time & score & steps & f1 \\",
    ]
    assert csv_text(table(frame)).startswith("batch size,a_b time,a_b score")


@pytest.mark.parametrize(
    "headings",
    [
        ["best score", "best epoch"],  # narrow
        ["model", "batch size", "time", "a b", "c b", "d", "e", "f"],  # nothing shared by neighbours
        ["a b", "x", "a c", "y", "z", "v", "w", "u"],  # shared, but apart
    ],
)
def test_other_headings_stay_as_they_are(headings):
    assert heading_groups(headings) == [("", [heading]) for heading in headings]
