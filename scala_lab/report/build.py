"""A report folder: figures, tables, claims and a page, all drawn from the records that lie beside them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scala_lab.errors import UserError
from scala_lab.files import new_folder, write_json, write_text
from scala_lab.report.chapter import MANIFEST_FILE, Chapter, Manifest, Piece, read_chapter
from scala_lab.report.page import claims_markdown, in_order, render_page
from scala_lab.study.profiles import Profile
from scala_lab.study.verdicts import ClaimRecord
from scala_lab.sweep.store import MEASUREMENTS_FILE, RUNS_FILE, Records

PAGE = "index.html"
WRITTEN = (RUNS_FILE, MEASUREMENTS_FILE, MANIFEST_FILE, "figures", "tables", "claims.json", "claims.md", PAGE)
"""Everything in a report folder, in the order in which it is written."""


def check_report_folder(folder: Path, manifest: Manifest) -> Manifest | None:
    """Refuse a folder that cannot take this report; returns the manifest of the report it already holds.

    Raises:
        UserError: The folder holds a report of another profile, model or device, or something else.
    """
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
    if not present.describes_same_runs(manifest):
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
    """Return the claims that the studies judged, and as not run those that they should have judged."""
    judged = [record for chapter in chapters for record in chapter.claims]
    known = {record.claim.id for record in judged}
    studies = [chapter.study for chapter in chapters if chapter.study is not None]
    missing = [ClaimRecord(claim, ()) for study in studies for claim in study.claims if claim.id not in known]
    return in_order([*judged, *missing])


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
