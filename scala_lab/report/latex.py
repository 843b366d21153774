"""Tables in LaTeX: booktabs rules, and every character that LaTeX would misread escaped."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\ensuremath{<}",
    ">": r"\ensuremath{>}",
    "|": r"\ensuremath{|}",
    "*": r"\ensuremath{*}",
    '"': r"\textquotedbl{}",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
    "\N{EN DASH}": "--",
    "\N{MULTIPLICATION SIGN}": r"\ensuremath{\times}",
    "±": r"\ensuremath{\pm}",
    "·": r"\ensuremath{\cdot}",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "≈": r"\ensuremath{\approx}",
    "→": r"\ensuremath{\to}",
    "∞": r"\ensuremath{\infty}",
    "√": r"\ensuremath{\surd}",
    "²": r"\ensuremath{^2}",
    "‖": r"\ensuremath{\|}",
    "…": r"\ldots{}",
    "†": r"\dag{}",
    **{
        unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"\ensuremath{{\{name.replace('lamda', 'lambda')}}}"
        for name in (
            "alpha",
            "beta",
            "gamma",
            "delta",
            "epsilon",
            "eta",
            "kappa",
            "lamda",
            "mu",
            "rho",
            "sigma",
            "omega",
        )
    },
}


def escape_latex(text: str) -> str:
    """The text as LaTeX prints it, with any compiler.

    Letters and marks outside ASCII that have no entry here are left: current LaTeX reads UTF-8.
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def latex_table(
    headings: Sequence[tuple[str, Sequence[str]]],
    rows: Sequence[Sequence[str]],
    alignment: str,
    caption: str,
    notes: Sequence[str],
    label: str,
) -> str:
    """A `table` environment; needs the package `booktabs`.

    Args:
        headings: Of the columns, plain text, by the word that stands over them; '' for none.
        rows: Cells, plain text.
        alignment: One letter per column.
        caption: Over the table, plain text.
        notes: Under the table, plain text.
        label: After `tab:`.
    """
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape_latex(caption)}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
        r"    \toprule",
        *_head(headings),
        r"    \midrule",
        *(f"    {_row(row)}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
    ]
    for note in notes:
        lines += ["", r"  \smallskip", f"  {{\\footnotesize {escape_latex(note)}\\par}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _head(groups: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """One line of headings, or two with a rule under each word that stands over several."""
    lines = [f"    {_row([heading for _, headings in groups for heading in headings])}"]
    if any(word for word, _ in groups):
        over, rules, column = [], [], 1
        for word, headings in groups:
            count = len(headings)
            over.append(f"\\multicolumn{{{count}}}{{c}}{{{escape_latex(word)}}}" if word else "")
            rules += [f"\\cmidrule(lr){{{column}-{column + count - 1}}}"] if word else []
            column += count
        lines = [f"    {' & '.join(over)} \\\\", f"    {''.join(rules)}", *lines]
    return lines


def _row(cells: Sequence[str]) -> str:
    """A line of cells; the braces keep a first cell such as `[0, 1]` from being read as an option of the line above."""
    escaped = [escape_latex(re.sub(r"^-(?=\d)", "\N{MINUS SIGN}", cell)) for cell in cells]
    if escaped and escaped[0].startswith("["):
        escaped[0] = "{}" + escaped[0]
    return " & ".join(escaped) + r" \\"
