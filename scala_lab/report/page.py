"""The report's page: one HTML file that needs nothing beside it, neither network nor folder.

Command lines that a report shows: how to get a study again, and a single run of it.

`claims.json` and `claims.md`: every claim with what was measured and the verdict.

The lists at the end of a report's page: every run, every measurement, and what they were made with.
"""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec, leaves
from scala_lab.methods.recipes import find_recipe
from scala_lab.processes import VERSION
from scala_lab.report.chapter import Chapter, Manifest, Piece
from scala_lab.report.tables import NOTHING, heading_groups
from scala_lab.study.verdicts import ClaimRecord, Part, Verdict
from scala_lab.sweep.store import Records

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from scala_lab.report.chapter import Manifest
    from scala_lab.study.profiles import Profile
    from scala_lab.sweep.store import Records


def study_command(manifest: Manifest, reference: str) -> str:
    """The command whose runs a study of the report is drawn from."""
    words = ["scala-lab", "study", reference, "--profile", manifest.profile]
    for flag, value in (("--data-dir", manifest.data_dir), ("--model", manifest.model)):
        words += [flag, value] if value else []
    return shlex.join(words)


def train_command(spec: Mapping[str, Any]) -> str:
    """The command that trains one run of a report, with the flags in which it differs from the defaults.

    Threads and device are always there: their defaults depend on the machine.

    Args:
        spec: As in the run's record.
    """
    run = RunSpec.from_dict(dict(spec))
    plain = RunSpec.of(
        method=run.recipe.method, task=run.data.task, optimizer=run.optim.optimizer, device=run.machine.device
    )
    defaults = {leaf.name: leaf.value for leaf in leaves(plain.resolved())}
    defaults |= {"optimizer": find_recipe(run.recipe.method).optimizer, "threads": None, "device": None}
    words = ["scala-lab", "train", "--task", run.data.task, "--method", run.recipe.method]
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
    if isinstance(value, float):
        short = f"{value:g}"
        return [f"--{flag}", short if float(short) == value else repr(value)]
    return [f"--{flag}", str(value)]


VERDICTS: dict[Verdict, str] = {"reproduced": "✓", "contradicted": "✗", "inconclusive": "~", "not run": "·"}
"""Each verdict with the sign that stands before the word, so that it can be read without colour."""


def in_order(claims: Sequence[ClaimRecord]) -> list[ClaimRecord]:
    """Sorted by id: C2 before C10."""
    return sorted(
        claims, key=lambda one: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", one.claim.id)]
    )


def claims_markdown(claims: Sequence[ClaimRecord]) -> str:
    """A table, and the rule of each claim below it."""
    lines = [
        "# Claims",
        "",
        "| claim | verdict | where | statement | paper | measured here |",
        "|---|---|---|---|---|---|",
    ]
    for one in claims:
        claim, measured = one.claim, one.to_dict()["measured"] or ""
        verdict = f"{VERDICTS[one.verdict]} {one.verdict}"
        cells = (claim.id, verdict, claim.source, claim.statement, claim.paper, measured)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## How each verdict is reached", ""]
    lines += [f"- **{one.claim.id}** (study `{one.claim.study}`): {one.claim.rule}" for one in claims]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Line:
    """A run or a measurement.

    Attributes:
        name: For people.
        status: finished, diverged, failed or running.
        cells: By column: what is shown, and what it is sorted by.
        detail: The command that trains the run, or the settings of the measurement.
        error: What went wrong.
        studies: That look at it.
    """

    name: str
    status: str
    cells: Mapping[str, tuple[str, Any]]
    detail: str
    error: str
    studies: Sequence[str]


def run_lines(records: Records, chapters: Sequence[Chapter]) -> list[Line]:
    """All runs, by name."""
    lines = []
    for key, record in records.runs.items():
        spec = record["spec"]
        rate = record.get("learning_rate")
        timing = record.get("timing") or {}
        cells = {
            "task": _text(Path(spec["data"]["task"]).name),
            "method": _text(spec["recipe"]["method"]),
            "model": _text(Path(spec["encoder"]["model"]).name),
            "B": _number(spec["batches"]["batch_size"], ",d"),
            "rate": _number(rate, ".3g"),
            "seed": _number(spec["seed"], "d"),
            "score": _number(_score(record), ".2f"),
            "steps": _number(record.get("steps_done"), ",d"),
            "seconds": _number(timing.get("train_seconds"), ",.1f"),
        }
        error = " ".join(str(record.get("error") or "").split())
        lines.append(Line(record["name"], record["status"], cells, train_command(spec), error, _users(key, chapters)))
    return sorted(lines, key=lambda line: line.name)


def measurement_lines(records: Records, chapters: Sequence[Chapter]) -> list[Line]:
    """All measurements, by name."""
    lines = []
    for key, record in records.measurements.items():
        runs = [records.runs[run]["name"] if run in records.runs else run for run in record.get("of", ())]
        cells = {
            "function": _text(record["function"].rpartition(":")[2]),
            "runs": _number(len(runs), "d"),
            "seconds": _number(record.get("seconds"), ",.1f"),
        }
        settings = json.dumps(record["settings"], sort_keys=True)
        detail = f"{record['function']} {settings}" + (f" of {', '.join(runs)}" if runs else "")
        error = " ".join(str(record.get("error") or "").split())
        lines.append(Line(record["name"], record["status"], cells, detail, error, _users(key, chapters)))
    return sorted(lines, key=lambda line: line.name)


def environment_rows(records: Records) -> list[tuple[str, str]]:
    """What the runs were made with; where they differ, every value once."""
    found: dict[str, dict[str, None]] = {}
    for _, record in sorted(records.runs.items()):
        environment = record.get("environment") or {}
        packages = environment.get("packages") or {}
        for name, value in {**environment, **packages}.items():
            if name not in ("packages", "command", "host") and value is not None:
                found.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in found.items()]


def _users(key: str, chapters: Sequence[Chapter]) -> list[str]:
    return [chapter.name for chapter in chapters if key in chapter.ids]


def _score(record: Mapping[str, Any]) -> float | None:
    """The task's first metric on its first split, in percent."""
    values = [value for metrics in (record.get("metrics") or {}).values() for value in metrics.values()]
    return 100 * values[0] if values and values[0] is not None else None


def _text(value: str) -> tuple[str, Any]:
    return value, value


def _number(value: float | None, number_format: str) -> tuple[str, Any]:
    return (NOTHING, "") if value is None else (f"{value:{number_format}}", value)


TEMPLATES = Path(__file__).parent / "templates"
SHOWN = 0.66
"""Size of a figure on the page over its pixels: letters are about as large as those of the tables, and sharp."""
STATUSES = ("finished", "diverged", "failed", "running", "missing")


def render_page(
    manifest: Manifest, profile: Profile, chapters: Sequence[Chapter], claims: Sequence[ClaimRecord], records: Records
) -> str:
    """The page as text.

    Args:
        manifest: What the report is of.
        profile: The profile the studies ran under.
        chapters: In the order of the page.
        claims: In the order of the table.
        records: What was drawn from.
    """
    counts = Counter(one.verdict for one in claims)
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            manifest=manifest,
            profile=profile,
            facts=_profile_facts(profile),
            chapters=chapters,
            claims=claims,
            verdict_counts=[(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]],
            claims_of={
                chapter.name: [one for one in claims if one.claim.study == chapter.name] for chapter in chapters
            },
            commands={chapter.reference: study_command(manifest, chapter.reference) for chapter in chapters},
            runs=run_lines(records, chapters),
            measurements=measurement_lines(records, chapters),
            environment=environment_rows(records),
            version=VERSION,
        )
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
    environment.filters["picture"] = _picture
    environment.filters["sort_key"] = _sort_key
    environment.filters["tally"] = _tally
    environment.filters["effect"] = _effect
    environment.filters["interval"] = _interval
    environment.filters["groups"] = lambda columns: heading_groups([column.heading for column in columns])
    return environment


def _picture(piece: Piece) -> Markup:
    """Source and size of an image: its place is kept before it is decoded, so that links land where they should."""
    from markupsafe import Markup

    content = piece.files[".png"]
    size = struct.unpack(">II", content[16:24])  # the first entries of a PNG's header
    width, height = (round(pixels * SHOWN) for pixels in size)
    return Markup('src="data:image/png;base64,{}" width="{}" height="{}"').format(
        base64.b64encode(content).decode("ascii"), width, height
    )


def _sort_key(value: Any) -> str:
    """What a cell is sorted by: a number in full, '' where there is none (always last), else its text."""
    if value is None or value != value:
        return ""
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _tally(statuses: Mapping[str, int]) -> str:
    """How cells ended: `30 finished, 2 diverged`."""
    return ", ".join(f"{statuses[name]} {name}" for name in STATUSES if statuses.get(name))


def _effect(part: Part) -> str:
    """The estimate without its interval."""
    estimate = part.estimate
    if not math.isfinite(estimate.value):
        return "no value"
    unit = {"x": "×", "": ""}.get(estimate.unit, f" {estimate.unit}")  # noqa: RUF001
    return f"{estimate.value:{'+' if estimate.unit == 'points' else ''}.3g}{unit}"


def _interval(part: Part) -> str:
    """The interval, or that there is none."""
    estimate = part.estimate
    if not estimate.decided:
        return "no interval"
    sign = "+" if estimate.unit == "points" else ""
    return f"{estimate.low:{sign}.3g} to {estimate.high:{sign}.3g}"


def _profile_facts(profile: Profile) -> list[tuple[str, str]]:
    """What a reader needs to know of the profile to read a number rightly."""
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
