"""Flags from dataclasses, with mistakes answered in one sentence."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

from scala_lab.errors import UserError, nearest

Options = TypeVar("Options")

FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
"""Nested dataclasses give flat flags: `--batch-size`, not `--spec.batches.batch-size`."""


def split_command(args: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """A command's own flags, and the command that follows them after `--`."""
    end = args.index("--") if "--" in args else len(args)
    return args[:end], tuple(args[end + 1 :])


def parse_flags(
    dataclass_type: type[Options],
    args: list[str],
    prog: str,
    description: str | None = None,
    default: Options | None = None,
) -> Options:
    """Read the flags of a dataclass.

    Args:
        dataclass_type: Its fields are the flags, the docstrings under them the help.
        args: What stands on the command line after the command.
        prog: Name of the command in help and errors.
        description: Text above the flags; default the dataclass's docstring.
        default: Values of the flags that are not given; default the dataclass's own.

    Raises:
        UserError: A flag that does not exist, lacks its value or has one that does not fit.
        SystemExit: `--help` was given and printed.
    """
    keywords: dict[str, Any] = {"prog": prog, "description": description, "config": FLAT}
    if default is not None:
        keywords["default"] = default
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options, unknown = tyro.cli(dataclass_type, args=args, return_unknown_args=True, **keywords)
    except SystemExit as end:
        if end.code == 2:
            raise UserError(f"{prog}: {_sentence(complaint.getvalue())}") from None
        raise
    if unknown:
        raise UserError(f"{prog}: {_about_unknown(unknown, _flag_names(dataclass_type, keywords))}")
    return options


def _flag_names(dataclass_type: type, keywords: dict[str, Any]) -> list[str]:
    help_text = tyro.extras.get_parser(dataclass_type, **keywords).format_help()
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", help_text)))


def _about_unknown(unknown: list[str], valid: list[str]) -> str:
    flags = [token.split("=")[0] for token in unknown if token.startswith("-")]
    if not flags:
        return f"unexpected {unknown[0]!r}: every setting is given as --flag value"
    flag = flags[0].replace("_", "-")
    advice = nearest(flag, valid)
    return f"unknown flag {flags[0]!r}: {advice if advice.startswith('did') else 'see --help for the flags there are'}"


def _sentence(box: str) -> str:
    """The message inside the frame that tyro draws around it, without title and footer."""
    lines = [line.strip() for line in box.splitlines()]
    blocks: list[list[str]] = [[]]
    for line in lines:
        row = line.strip("│|").strip()
        if row and set(row) <= {"─", "-"}:
            blocks.append([])
        elif row and row[0] not in "╭╰":
            blocks[-1].append(row)
    # a frame holds the title; without one (a terminal that is not UTF-8) the title is the first block
    framed = any(line.startswith("╭") for line in lines)
    message = blocks[0] if framed or len(blocks) == 1 else blocks[1]
    text = " ".join(message) or " ".join(box.split())
    for pattern, answer in _REWRITES:
        found = re.fullmatch(pattern, text)
        if found:
            return answer(found)
    return text


def _choices(listed: str) -> str:
    return ", ".join(sorted(choice for choice in re.findall(r"'([^']*)'", listed) if choice != "None"))


_REWRITES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (
        r"Error parsing (--[\w-]+).*?: invalid literal for int\(\).*: ('.*')",
        lambda found: f"{found[1]} must be a whole number, not {found[2]}",
    ),
    (
        r"Error parsing (--[\w-]+).*?: could not convert string to float: ('.*')",
        lambda found: f"{found[1]} must be a number, not {found[2]}",
    ),
    (
        r"invalid choice ('.*') for argument '(--[\w-]+)'\. Expected one of \((.*)\)\.",
        lambda found: f"{found[2]} must be one of {_choices(found[3])}, not {found[1]}",
    ),
    (r"Missing value for argument '(--[\w-]+)'\..*", lambda found: f"{found[1]} needs a value"),
)
"""What tyro says of common mistakes, in plainer words; whatever matches none is passed on as it is."""
