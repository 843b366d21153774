"""The command line: `scala-lab COMMAND ...`, the same as `python -m scala_lab COMMAND ...`.

A command is a module with a dataclass of its options and `run(options) -> exit code`; the dataclass's fields are
its flags. A module that builds its options in two stages defines `parse(args)` as well. Only the module of the
command that was asked for is imported, so that help is there at once.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any, NamedTuple

from scala_lab.errors import UserError, nearest
from scala_lab.version import VERSION


class Command(NamedTuple):
    """Where a command lives and what it is for."""

    module: str
    options: str
    summary: str


COMMANDS = {
    "train": Command("scala_lab.commands.train", "Train", "adapt a pretrained encoder to a task"),
    "evaluate": Command("scala_lab.commands.evaluate", "Evaluate", "metrics and predictions of any checkpoint"),
    "sharpness": Command("scala_lab.commands.sharpness", "Sharpness", "top Hessian eigenvalues of any checkpoint"),
    "landscape": Command("scala_lab.commands.landscape", "Landscape", "loss around and between checkpoints, drawn"),
    "study": Command("scala_lab.commands.study", "RunStudies", "figures and tables of the paper, and beyond it"),
    "reproduce": Command("scala_lab.commands.reproduce", "Reproduce", "all studies, with verdicts on every claim"),
    "report": Command("scala_lab.commands.report", "Report", "draw a report again from its own records"),
    "pretrain": Command("scala_lab.commands.pretrain", "Pretrain", "make the embedded encoder again"),
    "calibrate": Command("scala_lab.commands.calibrate", "Calibrate", "this machine's speed, and time on more workers"),
    "launch": Command("scala_lab.commands.launch", "Launch", "a SLURM script for a run over several nodes"),
    "hosts": Command("scala_lab.commands.hosts", "OnHosts", "train over several hosts that are all on this machine"),
    "architectures": Command(
        "scala_lab.commands.architectures", "Architectures", "which architectures give the stock model's results"
    ),
    "doctor": Command("scala_lab.commands.doctor", "Doctor", "what this machine has, and what is missing"),
}

QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}
"""Set before the libraries load unless the user set them: one progress bar, ours, and no warning from a fork."""


GARBAGE_THRESHOLD = 50_000
"""New objects before the collector looks for cycles. Importing torch and transformers makes many and leaves none of
them behind: at Python's own 700 the search takes a tenth of the start."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    args = sys.argv[1:] if argv is None else list(argv)
    try:
        try:
            return _dispatch(args)
        finally:
            sys.stdout.flush()
    except UserError as error:
        sentence = " ".join(str(error).split())
        if os.environ.get("LOCAL_RANK", "0") == "0":  # under torchrun all workers of a host find the same fault
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
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"scala-lab {VERSION}")
        return 0
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        kind = "flag" if name.startswith("-") else "command"
        raise UserError(f"unknown {kind} {name!r}: {nearest(name, COMMANDS)}")
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    gc.set_threshold(GARBAGE_THRESHOLD)
    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    return int(module.run(_options(module, command, name, rest)))


def _options(module: Any, command: Command, name: str, args: list[str]) -> Any:
    if hasattr(module, "parse"):
        return module.parse(args)
    from scala_lab.commands.flags import parse_flags

    return parse_flags(getattr(module, command.options), args, prog=f"scala-lab {name}")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: scala-lab COMMAND [--flag value ...]",
            "",
            "ScaLA: large-batch adaptation of pretrained transformers with light adversarial noise.",
            "",
            *lines,
            "",
            "`scala-lab COMMAND --help` lists a command's flags; `scala-lab train` alone is a first run.",
        ]
    )
