"""`claims.json` and `claims.md`: every claim with what was measured and the verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scala_lab.claims.record import ClaimRecord, Verdict

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
