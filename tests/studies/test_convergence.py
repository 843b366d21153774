from __future__ import annotations

import pytest

from scala_lab.study.api import frame_of
from scala_lab.study.profiles import EMBEDDED, PAPER
from scala_lab.sweep.store import Records
from studies import convergence


@pytest.fixture(scope="module")
def records():
    """The study's own cells at a tenth of their size."""
    found = {}
    for cell in convergence.cells(EMBEDDED):
        settings = dict(cell.item.settings)
        if "kappa" in settings:
            settings |= {"steps": [16, 64], "replicas": 3}
        else:
            settings |= {"problems": 4}
        small = type(cell.item)(cell.item.function, settings=settings)
        found[cell.item.id] = {"status": "finished", "result": small.compute([])}
    return found


def test_nothing_depends_on_the_profile():
    assert [cell.item.id for cell in convergence.cells(EMBEDDED)] == [cell.item.id for cell in convergence.cells(PAPER)]


def test_cells_differ(records):
    assert len(records) == len(convergence.cells(EMBEDDED))


def test_tables_hold_every_setting_and_claims_are_judged(records):
    cells = convergence.cells(EMBEDDED)
    findings = convergence.analyse(EMBEDDED, shrunk(frame_of(cells, Records({}, records))))
    rates, lemma = (table.frame for table in findings.tables)
    assert len(rates) == len(convergence.OUTER)
    assert len(lemma) == len(cells) - len(convergence.OUTER)
    assert [claim.claim.id for claim in findings.claims] == ["C19", "C20", "C22", "C27"]
    assert "not testable here" not in {claim.verdict for claim in findings.claims}
    assert len(findings.figures) == 2
    assert findings.found


def test_half_of_the_cells_is_enough_for_half_of_the_findings(records):
    cells = convergence.cells(EMBEDDED)
    lemma_alone = {key: value for key, value in records.items() if "factor" in value["result"]}
    findings = convergence.analyse(EMBEDDED, shrunk(frame_of(cells, Records({}, lemma_alone))))
    assert [claim.verdict for claim in findings.claims] == [
        "not testable here",
        "supported",
        *["not testable here"] * 2,
    ]
    failed = {key: {"status": "failed", "error": "no"} for key in records}
    findings = convergence.analyse(EMBEDDED, frame_of(cells, Records({}, failed)))
    assert {claim.verdict for claim in findings.claims} == {"not testable here"}
    assert not findings.tables


def shrunk(frame):
    """Labels say the full sizes; what was computed here is smaller."""
    return frame.assign(steps=[[16, 64] if isinstance(steps, list) else steps for steps in frame["steps"]])
