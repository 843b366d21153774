"""What every page of results is made of: templates, pictures, lists of runs and the commands that train them."""

import base64
import fcntl
import json
import os
import shlex
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from scala_lab.config import RunSpec, flat_settings
from scala_lab.files import new_folder
from scala_lab.methods.recipes import find_recipe
from scala_lab.report.chapter import Piece
from scala_lab.report.figures.forest import SIGNS
from scala_lab.report.tables import NOTHING, heading_groups
from scala_lab.sweep.store import Records
from scala_lab.version import VERSION

PAGE = "index.html"
TEMPLATES = Path(__file__).parent / "templates"
FIGURE_SCALE = 0.66
"""Size of a figure on the page over its pixels: letters are about as large as those of the tables, and sharp."""
STATUSES = ("finished", "diverged", "failed", "running", "missing")


def templates(functions: Iterable[Callable[..., Any]], filters: Iterable[Callable[..., Any]]) -> Environment:
    """Load the templates, with the functions and filters that they call beside those of every page."""
    lines: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    loader, escaped = FileSystemLoader(TEMPLATES), lambda name: name.endswith(".html.j2")
    environment = Environment(loader=loader, autoescape=escaped, undefined=StrictUndefined, **lines)
    environment.globals["inlined"] = lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8"))
    environment.globals |= {"symbols": SIGNS, "version": VERSION}
    environment.globals |= {function.__name__: function for function in (run_line, *functions)}
    own: list[Any] = [picture, sort_key, tally, heading_groups]
    environment.filters |= {function.__name__: function for function in (*own, *filters)}
    return environment


def picture(piece: Piece) -> Markup:
    """Write source and size of an image: a browser that knows the size before it decodes keeps links in place."""
    content = piece.files[".png"]
    size = struct.unpack(">II", content[16:24])  # the first entries of a PNG's header
    text, (width, height) = base64.b64encode(content).decode("ascii"), (round(side * FIGURE_SCALE) for side in size)
    return Markup('src="data:image/png;base64,{}" width="{}" height="{}"').format(text, width, height)


def sort_key(value: Any) -> str:
    """Return what a cell is sorted by: a number in full, '' where there is none (always last), else its text."""
    if value is None or value != value:
        return ""
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def tally(statuses: Mapping[str, int]) -> str:
    """Write counts: `30 finished, 2 diverged`."""
    return ", ".join(f"{statuses[name]} {name}" for name in (*STATUSES, *SIGNS) if statuses.get(name))


def train_command(spec: Mapping[str, Any]) -> str:
    """Return the command that trains a run, given the spec of its record, with the flags that differ from the defaults.

    Threads and device are always given: their defaults depend on the machine.
    """
    run = RunSpec.from_dict(dict(spec))
    task, method = run.data.task, run.recipe.method
    plain = RunSpec.of(method=method, task=task, optimizer=run.optim.optimizer, device=run.machine.device)
    defaults = flat_settings(plain.resolved())
    defaults |= {"optimizer": find_recipe(method).optimizer, "threads": None, "device": None}
    words = ["scala-lab", "train", "--task", task, "--method", method]
    for name, value in flat_settings(run).items():
        if name not in ("task", "method") and value != defaults[name]:
            words += _flag(name, value, optional=hasattr(run.recipe, name))
    return shlex.join(words)


def _flag(name: str, value: Any, *, optional: bool) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool) and not optional:
        return [f"--{flag}" if value else f"--no-{flag}"]
    short = isinstance(value, float) and float(f"{value:g}") == value
    return [f"--{flag}", *(value if isinstance(value, tuple) else [f"{value:g}" if short else str(value)])]


def run_line(record: Mapping[str, Any], _: Records) -> tuple[str, dict[str, Any]]:
    """Return the command that trains a run, and the cells of its line in the list of runs."""
    spec, timing = record["spec"], record.get("timing") or {}
    first = next((value for metrics in (record.get("metrics") or {}).values() for value in metrics.values()), None)
    return train_command(spec), {
        "task": _cell(Path(spec["data"]["task"]).name),
        "method": _cell(spec["recipe"]["method"]),
        "model": _cell(Path(spec["encoder"]["model"]).name),
        "B": _cell(spec["batches"]["batch_size"], ",d"),
        "rate": _cell(record.get("learning_rate"), ".3g"),
        "seed": _cell(spec["seed"], "d"),
        "score": _cell(None if first is None else 100 * first, ".2f"),
        "steps": _cell(record.get("steps_done"), ",d"),
        "seconds": _cell(timing.get("train_seconds"), ",.1f"),
    }


def measurement_line(record: Mapping[str, Any], records: Records) -> tuple[str, dict[str, Any]]:
    """Return the function, settings and runs of a measurement, and the cells of its line."""
    runs = [records.runs[run]["name"] if run in records.runs else run for run in record.get("of", ())]
    detail = f"{record['function']} {json.dumps(record['settings'], sort_keys=True)}"
    return detail + f" of {', '.join(runs)}" * bool(runs), {
        "function": _cell(record["function"].rpartition(":")[2]),
        "runs": _cell(len(runs), "d"),
        "seconds": _cell(record.get("seconds"), ",.1f"),
    }


def environment_rows(records: Records) -> list[tuple[str, str]]:
    """List versions and machines that the runs were made with; where they differ, every value once."""
    values_by_name: dict[str, dict[str, None]] = {}
    for _, record in sorted(records.runs.items()):
        environment = record.get("environment") or {}
        packages = environment.get("packages") or {}
        for name, value in {**environment, **packages}.items():
            if name not in ("packages", "command", "host") and value is not None:
                values_by_name.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in values_by_name.items()]


def _cell(value: Any, number_format: str = "") -> tuple[str, Any]:
    """Return the text shown, and the value by which the column is sorted."""
    return (NOTHING, "") if value is None else (f"{value:{number_format}}", value)


def write_pieces(folder: Path, pieces: Sequence[Piece]) -> None:
    """Replace a folder of figures or tables, so that none of a study that no longer draws it remains."""
    with new_folder(folder) as fresh:
        for piece in pieces:
            for ending, content in piece.files.items():
                (fresh / f"{piece.stem}{ending}").write_bytes(content)


@contextmanager
def locked(folder: Path, written: Sequence[str]) -> Iterator[None]:
    """Lock a report's folder against other processes, and remove what a killed one left half written of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for name in written:
            for unfinished in folder.glob(f".{name}.*"):
                shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
        yield
    finally:
        os.close(handle)
