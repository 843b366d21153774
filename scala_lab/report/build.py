"""A report folder: figures, tables, claims and a self-contained HTML page, drawn from the records beside them."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scala_lab.errors import UserError
from scala_lab.files import check_writable, write_json, write_text
from scala_lab.report.chapter import (
    MANIFEST_FILE,
    Chapter,
    Manifest,
    Piece,
    arms_table,
    read_chapter,
    table_piece,
    tuning_table,
)
from scala_lab.report.figures.forest import SIGNS, forest_figure
from scala_lab.report.figures.style import figure_files
from scala_lab.report.page import PAGE, environment_rows, locked, measurement_line, templates, write_pieces
from scala_lab.report.tables import NOTHING, markdown_row
from scala_lab.study.profiles import Profile
from scala_lab.study.statistics import FACTOR, MAX_N
from scala_lab.study.verdicts import ClaimRecord, Part, number_text, range_text
from scala_lab.sweep.store import MEASUREMENTS_FILE, RUNS_FILE, Records

WRITTEN = (RUNS_FILE, MEASUREMENTS_FILE, MANIFEST_FILE, "figures", "tables", "claims.json", "claims.md", PAGE)
"""Everything in a report folder, in the order in which it is written."""


def check_report_folder(folder: Path, manifest: Manifest) -> Manifest | None:
    """Refuse a folder that holds other things or cannot be written; return the manifest of the report it holds.

    A report goes on with more seeds; fewer would drop what it has.
    """
    check_writable(folder, "a report is a folder")
    present = Manifest.read(folder)
    if present is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no {MANIFEST_FILE}: choose another --out")
        return None
    seeds, more = (one.load_profile().seeds for one in (present, manifest))
    old, new = ((one.profile, one.model, *one.tasks, f"on {one.device}") for one in (present, manifest))
    if old != new or not set(seeds) <= set(more):
        other = " ".join([*filter(None, old), "seeds", *map(str, seeds)])
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
        kinds = (records.runs, records.measurements)
        records = Records(*({key: record for key, record in kind.items() if key in ids} for kind in kinds))
    with locked(folder, WRITTEN):
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
    with locked(folder, WRITTEN):
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
    claims, figures = all_claims(chapters), []
    own_tables = {"arms": arms_table(chapters, records), "tuning": tuning_table(chapters)}
    tables = [table_piece(stem, table) for stem, table in own_tables.items() if len(table.frame)]
    if any(record.parts for record in claims):
        caption = "Every part of every claim: the paper's value, the interval measured here, and what would count."
        figures = [Piece("claims-forest", caption, figure_files(forest_figure(claims), profile.demonstration))]
    write_pieces(folder / "figures", [*figures, *(piece for chapter in chapters for piece in chapter.figures)])
    write_pieces(folder / "tables", [*tables, *(piece for chapter in chapters for piece in chapter.tables)])
    write_json(folder / "claims.json", [record.to_dict() for record in claims])
    verdicts = [record.verdict for record in claims]
    content = {
        "manifest": manifest,
        "profile": profile,
        "chapters": chapters,
        "claims": claims,
        "verdict_counts": {verdict: verdicts.count(verdict) for verdict in SIGNS if verdict in verdicts},
        "worth": worth(profile, records),
        "own": {piece.stem: piece for piece in (*figures, *tables)},  # of no study
        "records": records,
        "environment": environment_rows(records),
    }
    filters: list[Any] = [markdown_row, gate_lines, sensitivity_text]
    environment = templates([part_cells, measurement_line, study_command], filters)
    for name in ("claims.md", PAGE):
        write_text(folder / name, environment.get_template(f"{name}.j2").render(content))


def worth(profile: Profile, records: Records) -> str:
    """Say what the verdicts are worth: on which encoder, rows, steps and seeds they rest."""
    runs = [records.runs[key] for key in sorted(records.runs) if records.runs[key]["status"] == "finished"]
    models = {Path(run["spec"]["encoder"]["model"]).name: run["parameters"] for run in runs}
    sizes = [f"{name} ({count / 1e6:.3g}M parameters)" for name, count in sorted(models.items())]
    rows = sorted({run["samples"]["train"] for run in runs})
    ends = " to ".join(f"{count:,}" for count in dict.fromkeys((*rows[:1], *rows[-1:])))
    facts = [f"{profile.name} profile", *sizes, f"{ends} training rows" if rows else "no run"]
    for size in (profile.small_batch, profile.large_batch):
        counts = Counter(run["steps"] for run in runs if run["spec"]["batches"]["batch_size"] == size)
        facts += [f"{count:,} steps at B={size:,}" for count, _ in counts.most_common(1)]
    seen = [task for task in profile.tasks if task in profile.seen_tasks]
    caveats = [f"the encoder was pretrained on rows of {', '.join(seen)}"] * bool(seen)
    caveats += [profile.demonstration] * bool(profile.demonstration)
    return "; ".join([f"{', '.join(facts)}, {len(profile.seeds)} seeds", *caveats])


def part_cells(record: ClaimRecord, part: Part) -> dict[str, str]:
    """Return the evidence on one part of a claim, by heading."""
    estimate, verdict = part.estimate, record.verdict_of(part)
    log = " (log)" if estimate.unit == FACTOR else ""
    inside = {None: "", True: " (inside)", False: " (outside)"}[part.paper_inside]
    needed = part.n_needed if verdict == "undecided" else None
    to_decide = None if needed is None else "more than " * (needed > MAX_N) + estimate.counted(min(needed, MAX_N))

    def text(value: float | None) -> str:
        return NOTHING if value is None or not math.isfinite(value) else number_text(part, value)

    ends = " to ".join(text(end).split()[0] for end in part.interval or ())
    return {
        "part": f"{part.statement} (context)" if part.contextual else part.statement,
        "verdict": f"{SIGNS[verdict]} {verdict}",
        "measured": text(estimate.value),
        "interval": f"{ends} ({100 * estimate.level:g}%)" if ends else NOTHING,
        "paper": text(part.paper) + inside,
        "smallest effect or range": text(part.smallest) if part.smallest is not None else range_text(part),
        "n": estimate.counted(estimate.n),
        "rows": f"{estimate.rows:,}" if estimate.rows else NOTHING,
        "paired SD": f"{estimate.sd:.2g}{log}" if math.isfinite(estimate.sd) else NOTHING,
        "detectable": text(estimate.detectable()).lstrip("+"),
        "n to decide": to_decide or NOTHING,
    }


def gate_lines(record: ClaimRecord) -> list[str]:
    """Write each gate: whether it passed, what was found, and what it would take."""
    return [
        f"{'✓' if gate.passed else '✗'} {gate.name}: {gate.detail}{'; it would take ' * bool(gate.remedy)}{gate.remedy}"
        for gate in record.gates
    ]


def sensitivity_text(record: ClaimRecord) -> str:
    """Say how many verdicts stay the same without a seed or a task and with other margins, and which do not."""
    found = record.sensitivity
    forms = {"without_seed": "without seed {}", "without_task": "without {}", "margins": "margins times {}"}
    others = [
        f"{form.format(value)} {verdict}"
        for name, form in forms.items()
        for value, verdict in found.get(name, {}).items()
        if verdict != record.verdict
    ]
    same = f"{found['same']} of {found['of']} verdicts are the same"
    return f"Sensitivity (each seed or task left out, margins halved and doubled): {'; '.join([same, *others])}."


def study_command(manifest: Manifest, reference: str) -> str:
    """Return the command that runs one study of the report."""
    words = ["scala-lab", "study", reference, "--profile", manifest.profile]
    for flag, value in (("--data-dir", manifest.data_dir), ("--model", manifest.model)):
        words += [flag, value] if value else []
    for flag, values in (("--seeds", manifest.seeds), ("--tasks", manifest.tasks)):
        words += [flag, *map(str, values)] if values else []
    return shlex.join(words)
