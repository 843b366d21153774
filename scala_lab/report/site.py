"""The report's page: one HTML file that needs nothing beside it, neither network nor folder."""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.claims.record import ClaimRecord, Part
from scala_lab.report.chapter import Chapter, Piece
from scala_lab.report.commands import study_command
from scala_lab.report.listing import environment_rows, measurement_lines, run_lines
from scala_lab.report.tables import heading_groups
from scala_lab.report.verdicts import VERDICTS
from scala_lab.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from scala_lab.report.manifest import Manifest
    from scala_lab.runs.records import Records
    from scala_lab.study.profiles import Profile

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
