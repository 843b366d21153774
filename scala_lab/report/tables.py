"""Tables as files: CSV, Markdown and LaTeX."""

import itertools
import math
import numbers
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scala_lab.study.api import DataFrame, Tabulation

_SIGNS = ("pm", "cdot", "leq", "geq", "approx", "to", "infty", "surd")
_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "eta", "kappa", "lambda", "mu", "rho", "sigma", "omega")
_MATH = {
    **{character: character for character in "<>|*"},
    **{sign: rf"\{name}" for sign, name in zip("±·≤≥≈→∞√αβγδεηκλμρσω", _SIGNS + _GREEK, strict=True)},
    "\N{MINUS SIGN}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times",
    "²": "^2",
    "‖": r"\|",
}
_ESCAPES = str.maketrans(
    {
        **{character: rf"\{character}" for character in "&%$#_{}"},
        **{character: rf"\ensuremath{{{formula}}}" for character, formula in _MATH.items()},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        '"': r"\textquotedbl{}",
        "\N{EN DASH}": "--",
        "…": r"\ldots{}",
        "†": r"\dag{}",
    }
)


def escape_latex(text: str) -> str:
    """Escape a text so that any LaTeX compiler prints it; other letters outside ASCII stay, as LaTeX reads UTF-8."""
    return text.translate(_ESCAPES)


NOTHING = "\N{EN DASH}"  # shown where a number is missing
WIDE = 8  # from this many columns on, neighbours that share the first word of their headings are grouped under it


@dataclass(frozen=True)
class Column:
    """A column as it is shown; one that holds any number is aligned to the right."""

    heading: str
    values: Sequence[Any]  # as the study gave them
    texts: Sequence[str]  # as they are shown
    numeric: bool


def flat_frame(frame: DataFrame) -> DataFrame:
    """Return the frame with its named index as first columns and one text per column heading."""
    flat = frame.reset_index(drop=not any(name is not None for name in frame.index.names))
    levels = [name if isinstance(name, tuple) else (name,) for name in flat.columns]
    return flat.set_axis([" ".join(filter(None, map(str, names))) for names in levels], axis=1)


def columns_of(table: Tabulation) -> list[Column]:
    """Return the table as it is shown, column by column."""
    flat = flat_frame(table.frame)
    columns = [(heading, flat.iloc[:, index].tolist()) for index, heading in enumerate(flat.columns)]
    return [Column(heading, values, column_texts(values), any(map(_is_number, values))) for heading, values in columns]


def heading_groups(headings: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Group the headings of a wide table that share their first word, in order: (word, rests).

    Example:
        >>> heading_groups(["method", *(f"{task} {what}" for task in "abcd" for what in ("time", "score"))])[:3]
        [('', ['method']), ('a', ['time', 'score']), ('b', ['time', 'score'])]
    """
    groups: list[tuple[str, list[str]]] = []
    for word, neighbours in itertools.groupby(headings, lambda heading: heading.partition(" ")[0] * (" " in heading)):
        shared = list(neighbours)
        if word and len(shared) > 1 and len(headings) >= WIDE:
            groups.append((word, [heading.partition(" ")[2] for heading in shared]))
        else:
            groups += [("", [heading]) for heading in shared]
    return groups


def csv_text(table: Tabulation) -> str:
    """Write all digits, for programs."""
    return flat_frame(table.frame).to_csv(index=False, lineterminator="\n")


def markdown_text(table: Tabulation) -> str:
    """Write caption, table and notes."""
    columns = columns_of(table)
    heads = [[column.heading for column in columns], ["---:" if column.numeric else "---" for column in columns]]
    rows = map(markdown_row, [*heads, *zip(*(column.texts for column in columns), strict=True)])
    notes = [line for note in table.notes for line in ("", note)]
    return "\n".join([f"**{table.caption}**", "", *rows, *notes]) + "\n"


def markdown_row(cells: Iterable[str]) -> str:
    """Write a line of a table."""
    return "| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"


def latex_text(table: Tabulation, label: str) -> str:
    """Write a `table` environment, which needs the package `booktabs`; `label` goes after `tab:`."""
    columns = columns_of(table)
    alignment = "".join("r" if column.numeric else "l" for column in columns)
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape_latex(table.caption)}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        r"    \toprule",
        *_latex_head(heading_groups([column.heading for column in columns])),
        r"    \midrule",
        *(f"    {_latex_row(row)}" for row in zip(*(column.texts for column in columns), strict=True)),
        r"    \bottomrule",
        r"  \end{tabular}",
    ]
    for note in table.notes:
        lines += ["", r"  \smallskip", f"  {{\\footnotesize {escape_latex(note)}\\par}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_head(groups: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Write one line of headings, or two with a rule under each word that spans several."""
    lines = [f"    {_latex_row([heading for _, headings in groups for heading in headings])}"]
    if any(word for word, _ in groups):
        over, rules, column = [], [], 1
        for word, headings in groups:
            count = len(headings)
            over.append(f"\\multicolumn{{{count}}}{{c}}{{{escape_latex(word)}}}" if word else "")
            rules += [f"\\cmidrule(lr){{{column}-{column + count - 1}}}"] if word else []
            column += count
        lines = [f"    {' & '.join(over)} \\\\", f"    {''.join(rules)}", *lines]
    return lines


def _latex_row(cells: Sequence[str]) -> str:
    """Write cells; braces keep a first cell such as `[0, 1]` from being read as an option of the line above."""
    escaped = [escape_latex(re.sub(r"^-(?=\d)", "\N{MINUS SIGN}", cell)) for cell in cells]
    if escaped and escaped[0].startswith("["):
        escaped[0] = "{}" + escaped[0]
    return " & ".join(escaped) + r" \\"


def column_texts(values: Sequence[Any]) -> list[str]:
    """Format the values of a column, its numbers with equally many decimals.

    Whole numbers have none. A column whose numbers are all short (0.003, 1e-05) shows them as they are. Otherwise the
    largest number decides: from 1,000 on no decimal, from 100 on one, from 1 on two, else three significant digits.
    """
    number_format = _number_format([float(value) for value in values if _is_number(value) and math.isfinite(value)])
    return [_text(value, number_format) for value in values]


def _number_format(finite: Sequence[float]) -> str:
    if all(value == int(value) for value in finite):
        return ",.0f"
    if all(float(f"{value:.2g}") == value for value in finite):
        return ".2g"
    largest = max(abs(value) for value in finite)
    if largest < 1:
        decimals = 2 - math.floor(math.log10(largest))
        return f".{decimals}f" if decimals <= 5 else ".2e"
    return ",.0f" if largest >= 1000 else ".1f" if largest >= 100 else ".2f"


def _text(value: Any, number_format: str) -> str:
    if value is None or value != value:  # nan, NaT and the like
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_number(value):
        return " ".join(str(value).split())
    return f"{float(value):{number_format}}" if math.isfinite(value) else f"{float(value):g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)
