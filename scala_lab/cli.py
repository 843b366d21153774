"""The command line: `scala-lab COMMAND ...`, the same as `python -m scala_lab COMMAND ...`.

A command is a module with a dataclass of its options, whose fields are its flags, and `run(options) -> exit code`; it
may define `parse(args)` as well. Only the module of the given command is imported, and tyro and rich only when they are
used, so that help takes 0.04 s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scala_lab.errors import UserError, nearest
from scala_lab.files import check_writable
from scala_lab.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

    from scala_lab.config import DataSpec

Options = TypeVar("Options")


QUIET = {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error", "DATASETS_VERBOSITY": "error"}
QUIET |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Set before the libraries load unless the user set them: one progress bar, ours, and no warning from a fork."""

GARBAGE_THRESHOLD = 50_000
"""New objects before a garbage collection: at Python's own 700, a tenth of the time to import torch is spent in it."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        try:
            return _dispatch(sys.argv[1:] if argv is None else list(argv))
        finally:
            sys.stdout.flush()
    except UserError as error:
        sentence = " ".join(str(error).split())
        if os.environ.get("LOCAL_RANK", "0") == "0":  # under torchrun all workers of a host find the same error
            print(f"scala-lab: error: {sentence.removeprefix('scala-lab ')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("scala-lab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader left (`| head`): point stdout elsewhere, so that the exit's flush does not fail as well
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(args: list[str]) -> int:
    name, *rest = args or ["--help"]
    if name in ("-h", "--help", "help", "-V", "--version"):
        print(f"scala-lab {VERSION}" if name in ("-V", "--version") else _help())
        return 0
    if name not in COMMANDS:
        kind = "flag" if name.startswith("-") else "command"
        raise UserError(f"unknown {kind} {name!r}: {nearest(name, COMMANDS)}")
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    gc.set_threshold(GARBAGE_THRESHOLD)
    module, command = importlib.import_module(f"scala_lab.commands.{name}"), COMMANDS[name]
    if hasattr(module, "parse"):
        return int(module.run(module.parse(rest)))
    return int(module.run(command.parse(getattr(module, command.options), rest, f"scala-lab {name}")))


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"""usage: scala-lab COMMAND [--flag value ...]

ScaLA: large-batch adaptation of pretrained transformers with light adversarial noise.

{lines}

`scala-lab COMMAND --help` lists a command's flags; `scala-lab train` alone is a first run."""


def parse_flags(dataclass_type: type[Options], args: list[str], prog: str, default: Options | None = None) -> Options:
    """Read the flags of a dataclass: its fields, those of nested dataclasses included, with their docstrings as help.

    Flags that are not given have the values of `default`, else the dataclass's own.
    """
    import tyro

    keywords: dict[str, Any] = {"prog": prog, "default": tyro.MISSING_NONPROP if default is None else default}
    keywords["config"] = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            options, unknown = tyro.cli(dataclass_type, args=args, return_unknown_args=True, **keywords)
    except SystemExit as end:
        if end.code == 2:
            raise UserError(f"{prog}: {_plain_sentence(message.getvalue())}") from None
        raise
    if not unknown:
        return options
    flag = next((token.split("=")[0] for token in unknown if token.startswith("-")), None)
    if flag is None:
        raise UserError(f"{prog}: unexpected {unknown[0]!r}: every setting is given as --flag value")
    help_text = tyro.extras.get_parser(dataclass_type, **keywords).format_help()
    advice = nearest(flag.replace("_", "-"), sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", help_text))))
    advice = advice if advice.startswith("did") else "see --help for the flags there are"
    raise UserError(f"{prog}: unknown flag {flag!r}: {advice}")


def _plain_sentence(box: str) -> str:
    """Take the message out of the frame that tyro draws around it, and say common mistakes more plainly."""
    rows = [row for line in box.splitlines() if (row := line.strip().strip("│|").strip()) and row[0] not in "╭╰"]
    by_rules = itertools.groupby(rows, lambda row: set(row) <= {"─", "-"})
    blocks = [" ".join(block) for is_rule, block in by_rules if not is_rule] or [" ".join(box.split())]
    # a frame holds the title; without one (a terminal that is not UTF-8) the title is the first block
    text = blocks[0] if "╭" in box or len(blocks) == 1 else blocks[1]
    for pattern, sentence in _PLAIN_SENTENCES.items():
        if match := re.fullmatch(pattern, text):
            return match.expand(sentence)
    if match := re.fullmatch(r"invalid choice ('.*') for argument '(--[\w-]+)'\. Expected one of \((.*)\)\.", text):
        choices = sorted(choice for choice in re.findall(r"'([^']*)'", match[3]) if choice != "None")
        return f"{match[2]} must be one of {', '.join(choices)}, not {match[1]}"
    return text


_PLAIN_SENTENCES = {
    r"Error parsing (--[\w-]+).*?: invalid literal for int\(\).*: ('.*')": r"\1 must be a whole number, not \2",
    r"Error parsing (--[\w-]+).*?: could not convert string to float: ('.*')": r"\1 must be a number, not \2",
    r"Missing value for argument '(--[\w-]+)'\..*": r"\1 needs a value",
}


def parse_with_run_data(options_type: type[Options], args: list[str], prog: str) -> Options:
    """Parse the flags of a command with `checkpoints` and `data`; without --task, use the data of a run among them."""
    options: Any = parse_flags(options_type, args, prog=prog)
    if any(arg.split("=")[0] == "--task" for arg in args):
        return options
    check_checkpoints(options.checkpoints)
    known = next(filter(None, map(_data_of_run, options.checkpoints)), None)
    if known is None:
        raise UserError(f"--task is needed: {options.checkpoints[0]} does not say what it was trained on")
    return parse_flags(options_type, args, prog=prog, default=options_type(data=known))  # type: ignore[call-arg]


def _data_of_run(checkpoint: Path) -> DataSpec | None:
    """Return the data of the run whose folder or checkpoint this is; None if it is not a run's."""
    from scala_lab.training.run_dir import read_run

    run = read_run(checkpoint) or (read_run(checkpoint.parent) if checkpoint.name == "checkpoint" else None)
    # without label names: they are those of the model that the run started from, its own checkpoint has the task's
    return None if run is None else dataclasses.replace(run.spec.data, label_names=())


def parse_with_command(options_type: type[Options], args: list[str], prog: str) -> Options:
    """Parse a command's own flags, and keep the command that follows them after `--` as `command`."""
    end = args.index("--") if "--" in args else len(args)
    options: Any = parse_flags(options_type, args[:end], prog)
    return dataclasses.replace(options, command=tuple(args[end + 1 :]))


class Command(NamedTuple):
    """A command's dataclass of options in the module `scala_lab.commands.NAME`, what it is for, how flags are read."""

    options: str
    summary: str
    parse: Callable[..., Any] = parse_flags


COMMANDS = {
    "train": Command("Train", "adapt a pretrained encoder to a task"),
    "evaluate": Command("Evaluate", "metrics and predictions of any checkpoint", parse_with_run_data),
    "sharpness": Command("Sharpness", "top Hessian eigenvalues of any checkpoint", parse_with_run_data),
    "landscape": Command("Landscape", "loss around and between checkpoints, drawn", parse_with_run_data),
    "sweep": Command("Sweep", "any grid over any settings: table, heat map, best settings"),
    "study": Command("RunStudies", "figures and tables of the paper, and beyond it"),
    "reproduce": Command("Reproduce", "all studies, with verdicts on every claim"),
    "report": Command("Report", "draw a report again from its own records"),
    "pretrain": Command("Pretrain", "make the embedded encoder again"),
    "calibrate": Command("Calibrate", "this machine's speed, and time on more workers"),
    "launch": Command("Launch", "a SLURM script for a run over several nodes", parse_with_command),
    "hosts": Command("OnHosts", "train over several hosts that are all on this machine", parse_with_command),
    "audit": Command("Audit", "does a Trainer's gradient depend on how the batch is cut"),
    "architectures": Command("Architectures", "which architectures give the stock model's results"),
    "doctor": Command("Doctor", "what this machine has, and what is missing"),
}


def result_console() -> Console:
    """Open the console for results: as wide as the terminal, or unlimited into a file or a pipe."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def check_checkpoints(checkpoints: Sequence[Path], distinct: bool = False) -> None:
    """Refuse folders without a model, and one that is given twice where a figure has to tell them apart."""
    from scala_lab.models.loading import locate_model

    if not checkpoints:
        raise UserError("at least one checkpoint folder is needed")
    for index, checkpoint in enumerate(checkpoints):
        if not checkpoint.is_dir():
            problem = "a file, not a folder" if checkpoint.exists() else "missing"
            raise UserError(f"checkpoint {checkpoint} is {problem}")
        locate_model(str(checkpoint))
        if distinct and any(checkpoint.samefile(other) for other in checkpoints[:index]):
            raise UserError(f"checkpoint {checkpoint} is given twice")


def check_new_files(*files: Path | None) -> None:
    """Refuse a file that exists or cannot be made."""
    for file in filter(None, files):
        if os.path.lexists(file):
            raise UserError(f"{file} exists already: choose another name")
        if not file.parent.is_dir():
            raise UserError(f"{file} cannot be written: {file.parent} is no folder")


def check_new_folder(folder: Path | None) -> None:
    """Refuse a folder with something in it, or that cannot be made."""
    if folder is None:
        return
    check_writable(folder, "--out takes a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} exists already and is not empty: choose another --out")
