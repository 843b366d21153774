"""The command line: `scala-lab COMMAND ...`, the same as `python -m scala_lab COMMAND ...`.

Flags from dataclasses, with mistakes answered in one sentence.

The closing summary of a run.

A bar that moves with every Hessian-vector product or every point of a landscape.

A command is a module with a dataclass of its options and `run(options) -> exit code`; the dataclass's fields are
its flags. A module that builds its options in two stages defines `parse(args)` as well. Only the module of the
command that was asked for is imported, so that help is there at once.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from scala_lab.errors import UserError, nearest
from scala_lab.processes import VERSION
from scala_lab.training.progress import describe_metrics

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult


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


def result_console() -> Console:
    """Where results go: as wide as the terminal, or, into a file or a pipe, as wide as the longest line."""
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def show_result(result: RunResult, already_finished: bool) -> None:
    """Print what a run came to and where it lies."""
    console, record = result_console(), result.record
    spec = result.spec
    if already_finished:
        console.print(f"{result.folder} holds this run already, {result.status}: not trained again", highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("run", f"{record['name']}  ({result.status})")
    if result.status == "diverged":
        why = record.get("error") or f"the loss is not finite at step {record['steps_done']}"
        table.add_row("diverged", f"{why} of {record['steps']}")
    for split, metrics in result.metrics.items():
        table.add_row(split, describe_metrics({split: metrics}).removeprefix(f"{split} "))
    if record.get("best"):
        best = record["best"]
        table.add_row("best epoch", f"{best['epoch']:g}: {describe_metrics(best['metrics'])}")
    if record.get("timing"):
        timing = record["timing"]
        table.add_row(
            "training",
            f"{record['steps_done']} steps of {spec.batches.batch_size} in {timing['train_seconds']:.1f} s, "
            f"{timing['samples_per_second']:,.0f} samples/s, peak rate {record['learning_rate']:.3g}",
        )
        table.add_row("time", _shares(timing["phases"]))
    if record.get("counts", {}).get("skipped_noise"):
        table.add_row("left out", f"{record['counts']['skipped_noise']} noise terms that were not finite")
    if record.get("counts", {}).get("skipped_steps"):
        table.add_row("skipped", f"{record['counts']['skipped_steps']} steps whose gradient overflowed in fp16")
    for file, count in record["skipped_rows"].items():
        table.add_row("malformed", f"{count} rows of {file} were passed over")
    if result.status == "finished":
        table.add_row("checkpoint", str(result.checkpoint))
    console.print(table, highlight=False)


def _shares(phases: dict[str, float]) -> str:
    total = sum(phases.values()) or 1.0
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in phases.items() if seconds / total >= 0.005)


class CountBar:
    """Counts by checkpoint on stderr, on a terminal only.

    Args:
        shown: False for workers other than the first.
    """

    def __init__(self, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}, {task.fields[pace]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> CountBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, title: str, what: Literal["products", "points"], total: int | None = None) -> None:
        """Begin to count something else; how many products there will be is not known beforehand."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._what, self._total = what, total
        self._task = self._progress.add_task(title, total=total, count=self._count(0), pace="starting")

    def advance(self) -> None:
        """Count one."""
        if self._task is None:
            return
        self._progress.advance(self._task)
        task = self._progress.tasks[-1]
        if task.elapsed and task.completed:
            pace = f"{task.elapsed / task.completed:.2f} s each"
            self._progress.update(self._task, count=self._count(int(task.completed)), pace=pace)

    def _count(self, done: int) -> str:
        return f"{done} {self._what}" if self._total is None else f"{done} of {self._total} {self._what}"


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
