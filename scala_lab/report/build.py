"""A report folder: figures, tables, claims and a self-contained HTML page, drawn from the records beside them."""

from __future__ import annotations

import base64
import fcntl
import json
import math
import os
import re
import shlex
import shutil
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec, leaves
from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json, write_text
from scala_lab.methods.recipes import find_recipe
from scala_lab.report.chapter import MANIFEST_FILE, Chapter, Manifest, Piece, read_chapter
from scala_lab.report.tables import NOTHING, heading_groups
from scala_lab.study.verdicts import ClaimRecord, Part, Verdict
from scala_lab.sweep.store import MEASUREMENTS_FILE, RUNS_FILE, Records
from scala_lab.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from scala_lab.study.profiles import Profile

PAGE = "index.html"
WRITTEN = (RUNS_FILE, MEASUREMENTS_FILE, MANIFEST_FILE, "figures", "tables", "claims.json", "claims.md", PAGE)
"""Everything in a report folder, in the order in which it is written."""


def check_report_folder(folder: Path, manifest: Manifest) -> Manifest | None:
    """Refuse a folder that holds other things or cannot be written; return the manifest of the report it holds."""
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"{existing} is a file: a report is a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"the report {folder} cannot be written: {existing} is read-only")
    present = Manifest.read(folder)
    if present is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no {MANIFEST_FILE}: choose another --out")
        return None
    if (present.profile, present.model, present.device) != (manifest.profile, manifest.model, manifest.device):
        other = " ".join(word for word in (present.profile, present.model, f"on {present.device}") if word)
        raise UserError(f"{folder} holds the report of other runs ({other}): choose another --out")
    return present


def write_report(folder: Path, manifest: Manifest, records: Records) -> list[Chapter]:
    """Write the records that the studies need, and everything that is drawn from them.

    The same records give the same bytes. Every file is replaced atomically; the page comes last.
    """
    profile = manifest.load_profile()
    chapters = [read_chapter(reference, profile, records) for reference in manifest.studies]
    if not any(chapter.failure and not chapter.ids for chapter in chapters):  # else the needed records are unknown
        ids = frozenset[str]().union(*(chapter.ids for chapter in chapters))
        runs, measurements = (
            {key: record for key, record in kind.items() if key in ids} for kind in (records.runs, records.measurements)
        )
        records = Records(runs, measurements)
    with _locked(folder):
        records.write(folder)
        manifest.write(folder)
        _draw(folder, manifest, profile, chapters, records)
    return chapters


def rebuild_report(folder: Path) -> list[Chapter]:
    """Draw everything again from the records of a folder."""
    manifest = Manifest.read(folder)
    if manifest is None:
        raise UserError(f"{folder} holds no report: {MANIFEST_FILE} is missing")
    records, profile = Records.read(folder), manifest.load_profile()
    chapters = [read_chapter(reference, profile, records) for reference in manifest.studies]
    with _locked(folder):
        _draw(folder, manifest, profile, chapters, records)
    return chapters


def all_claims(chapters: Sequence[Chapter]) -> list[ClaimRecord]:
    """Return the claims that the studies judged, and as not run those that they did not; C2 before C10."""
    judged = [record for chapter in chapters for record in chapter.claims]
    known = {record.claim.id for record in judged}
    studies = [chapter.study for chapter in chapters if chapter.study is not None]
    missing = [ClaimRecord(claim, ()) for study in studies for claim in study.claims if claim.id not in known]

    def natural_order(record: ClaimRecord) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", record.claim.id)]

    return sorted([*judged, *missing], key=natural_order)


def _draw(folder: Path, manifest: Manifest, profile: Profile, chapters: Sequence[Chapter], records: Records) -> None:
    claims = all_claims(chapters)
    _write_pieces(folder / "figures", [piece for chapter in chapters for piece in chapter.figures])
    _write_pieces(folder / "tables", [piece for chapter in chapters for piece in chapter.tables])
    write_json(folder / "claims.json", [record.to_dict() for record in claims])
    write_text(folder / "claims.md", claims_markdown(claims))
    write_text(folder / PAGE, render_page(manifest, profile, chapters, claims, records))


def _write_pieces(folder: Path, pieces: Sequence[Piece]) -> None:
    """Replace a folder of figures or tables, so that none of a study that no longer draws it remains."""
    with new_folder(folder) as fresh:
        for piece in pieces:
            for ending, content in piece.files.items():
                (fresh / f"{piece.stem}{ending}").write_bytes(content)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a report's folder against other processes, and remove what a killed one left half written."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for name in WRITTEN:
            for unfinished in folder.glob(f".{name}.*"):
                shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
        yield
    finally:
        os.close(handle)


VERDICTS: dict[Verdict, str] = {"reproduced": "✓", "contradicted": "✗", "inconclusive": "~", "not run": "·"}
"""The sign before each verdict, so that it can be read without colour."""


def claims_markdown(claims: Sequence[ClaimRecord]) -> str:
    """Write a table of all claims, and the rule of each below it."""
    head = "| claim | verdict | where | statement | paper | measured here |"
    lines = ["# Claims", "", head, "|---|---|---|---|---|---|"]
    for record in claims:
        claim, measured = record.claim, record.to_dict()["measured"] or ""
        verdict = f"{VERDICTS[record.verdict]} {record.verdict}"
        cells = (claim.id, verdict, claim.source, claim.statement, claim.paper, measured)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## How each verdict is reached", ""]
    lines += [f"- **{each.claim.id}** (study `{each.claim.study}`): {each.claim.rule}" for each in claims]
    return "\n".join(lines) + "\n"


TEMPLATES = Path(__file__).parent / "templates"
FIGURE_SCALE = 0.66
"""Size of a figure on the page over its pixels: letters are about as large as those of the tables, and sharp."""
STATUSES = ("finished", "diverged", "failed", "running", "missing")


def render_page(
    manifest: Manifest, profile: Profile, chapters: Sequence[Chapter], claims: Sequence[ClaimRecord], records: Records
) -> str:
    """Return the page as text, chapters and claims in the given order."""
    counts = Counter(record.verdict for record in claims)
    by_study = {chapter.name: [each for each in claims if each.claim.study == chapter.name] for chapter in chapters}
    template = _environment().get_template("index.html.j2")
    return template.render(
        manifest=manifest,
        profile=profile,
        facts=_profile_facts(profile),
        chapters=chapters,
        claims=claims,
        verdict_counts=[(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]],
        claims_of=by_study,
        commands={chapter.reference: study_command(manifest, chapter.reference) for chapter in chapters},
        runs=_run_lines(records, chapters),
        measurements=_measurement_lines(records, chapters),
        environment=_environment_rows(records),
        version=VERSION,
    )


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["inlined"] = lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8"))
    environment.globals["symbols"] = VERDICTS
    environment.filters |= {
        "picture": _picture,
        "sort_key": _sort_key,
        "tally": _tally,
        "effect": _effect,
        "interval": _interval,
        "groups": lambda columns: heading_groups([column.heading for column in columns]),
    }
    return environment


def _picture(piece: Piece) -> Markup:
    """Write source and size of an image: a browser that knows the size before it decodes keeps links in place."""
    from markupsafe import Markup

    content = piece.files[".png"]
    size = struct.unpack(">II", content[16:24])  # the first entries of a PNG's header
    text, (width, height) = base64.b64encode(content).decode("ascii"), (round(side * FIGURE_SCALE) for side in size)
    return Markup('src="data:image/png;base64,{}" width="{}" height="{}"').format(text, width, height)


def _sort_key(value: Any) -> str:
    """Return what a cell is sorted by: a number in full, '' where there is none (always last), else its text."""
    if value is None or value != value:
        return ""
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _tally(statuses: Mapping[str, int]) -> str:
    """Count cells by status: `30 finished, 2 diverged`."""
    return ", ".join(f"{statuses[name]} {name}" for name in STATUSES if statuses.get(name))


def _effect(part: Part) -> str:
    """Write the estimate without its interval."""
    estimate = part.estimate
    if not math.isfinite(estimate.value):
        return "no value"
    unit = {"x": "×", "": ""}.get(estimate.unit, f" {estimate.unit}")  # noqa: RUF001
    return f"{estimate.value:{'+' if estimate.unit == 'points' else ''}.3g}{unit}"


def _interval(part: Part) -> str:
    """Write the interval, or that there is none."""
    sign = "+" if part.estimate.unit == "points" else ""
    return " to ".join(f"{end:{sign}.3g}" for end in part.interval) if part.interval else "no interval"


def _profile_facts(profile: Profile) -> list[tuple[str, str]]:
    """List what a reader needs to know of the profile to read a number rightly."""
    rates = "; ".join(f"{name} {_listed(grid)}" for name, grid in profile.large_rates.items())
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in profile.settings.items())
    return [
        ("models", _listed(Path(model).name for model in profile.models)),
        ("tasks", _listed(profile.tasks)),
        ("batch sizes", f"small {profile.small_batch}, large {profile.large_batch:,}"),
        (f"rates at B={profile.small_batch}", f"adamw {_listed(profile.small_rates)}"),
        (f"rates at B={profile.large_batch}", rates),
        ("seeds", _listed(profile.seeds)),
        ("settings", settings),
    ]


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def study_command(manifest: Manifest, reference: str) -> str:
    """Return the command that runs one study of the report."""
    words = ["scala-lab", "study", reference, "--profile", manifest.profile]
    for flag, value in (("--data-dir", manifest.data_dir), ("--model", manifest.model)):
        words += [flag, value] if value else []
    return shlex.join(words)


def train_command(spec: Mapping[str, Any]) -> str:
    """Return the command that trains a run, given the spec of its record, with the flags that differ from the defaults.

    Threads and device are always given: their defaults depend on the machine.
    """
    run = RunSpec.from_dict(dict(spec))
    task, method = run.data.task, run.recipe.method
    plain = RunSpec.of(method=method, task=task, optimizer=run.optim.optimizer, device=run.machine.device)
    defaults = {leaf.name: leaf.value for leaf in leaves(plain.resolved())}
    defaults |= {"optimizer": find_recipe(method).optimizer, "threads": None, "device": None}
    words = ["scala-lab", "train", "--task", task, "--method", method]
    for leaf in leaves(run):
        if leaf.name not in ("task", "method") and leaf.value != defaults[leaf.name]:
            words += _flag(leaf.name, leaf.value, optional=leaf.part == "recipe")
    return shlex.join(words)


def _flag(name: str, value: Any, *, optional: bool) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool) and not optional:
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}", *value]
    if isinstance(value, float) and float(f"{value:g}") == value:
        return [f"--{flag}", f"{value:g}"]
    return [f"--{flag}", str(value)]


def _run_lines(records: Records, chapters: Sequence[Chapter]) -> list[dict[str, Any]]:
    """List all runs by name, each with the command that trains it."""
    lines = []
    for key, record in records.runs.items():
        spec, timing = record["spec"], record.get("timing") or {}
        cells = {
            "task": _cell(Path(spec["data"]["task"]).name),
            "method": _cell(spec["recipe"]["method"]),
            "model": _cell(Path(spec["encoder"]["model"]).name),
            "B": _cell(spec["batches"]["batch_size"], ",d"),
            "rate": _cell(record.get("learning_rate"), ".3g"),
            "seed": _cell(spec["seed"], "d"),
            "score": _cell(_score(record), ".2f"),
            "steps": _cell(record.get("steps_done"), ",d"),
            "seconds": _cell(timing.get("train_seconds"), ",.1f"),
        }
        lines.append(_line(key, record, cells, train_command(spec), chapters))
    return sorted(lines, key=lambda line: line["name"])


def _measurement_lines(records: Records, chapters: Sequence[Chapter]) -> list[dict[str, Any]]:
    """List all measurements by name, each with its settings."""
    lines = []
    for key, record in records.measurements.items():
        runs = [records.runs[run]["name"] if run in records.runs else run for run in record.get("of", ())]
        cells = {
            "function": _cell(record["function"].rpartition(":")[2]),
            "runs": _cell(len(runs), "d"),
            "seconds": _cell(record.get("seconds"), ",.1f"),
        }
        settings = json.dumps(record["settings"], sort_keys=True)
        detail = f"{record['function']} {settings}" + (f" of {', '.join(runs)}" if runs else "")
        lines.append(_line(key, record, cells, detail, chapters))
    return sorted(lines, key=lambda line: line["name"])


def _environment_rows(records: Records) -> list[tuple[str, str]]:
    """List versions and machines that the runs were made with; where they differ, every value once."""
    values_by_name: dict[str, dict[str, None]] = {}
    for _, record in sorted(records.runs.items()):
        environment = record.get("environment") or {}
        packages = environment.get("packages") or {}
        for name, value in {**environment, **packages}.items():
            if name not in ("packages", "command", "host") and value is not None:
                values_by_name.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in values_by_name.items()]


def _line(
    key: str, record: Mapping[str, Any], cells: Mapping[str, tuple[str, Any]], detail: str, chapters: Sequence[Chapter]
) -> dict[str, Any]:
    line = {"name": record["name"], "status": record["status"], "cells": cells, "detail": detail}
    error = " ".join(str(record.get("error") or "").split())
    return {**line, "error": error, "studies": [chapter.name for chapter in chapters if key in chapter.ids]}


def _score(record: Mapping[str, Any]) -> float | None:
    """Return the task's first metric on its first split, in percent."""
    values = [value for metrics in (record.get("metrics") or {}).values() for value in metrics.values()]
    return 100 * values[0] if values and values[0] is not None else None


def _cell(value: Any, number_format: str = "") -> tuple[str, Any]:
    """Return the text shown, and the value by which the column is sorted."""
    return (NOTHING, "") if value is None else (f"{value:{number_format}}", value)
