"""Each claim's rule, fed with made-up runs of known truth: true, false, absent, undecidable, or failing a gate."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from scala_lab.study.api import all_studies
from scala_lab.study.verdicts import record

RULES = {
    claim.id: (claim, getattr(sys.modules[study.cells.__module__], claim.id.lower()))
    for study in all_studies().values()
    for claim in study.claims
}
"""Every claim with the function that judges it, by id."""

CASES = {}
for module in sorted(Path(__file__).parent.glob("*_cases.py")):
    CASES.update(importlib.import_module(f"tests.studies.{module.stem}").CASES)
"""By claim and verdict: a function that makes the frame. Files named *_cases.py hold them."""


@pytest.mark.parametrize(
    ("claim_id", "verdict"), [(claim_id, verdict) for claim_id, cases in CASES.items() for verdict in cases]
)
def test_rule_finds_the_verdict_that_the_runs_were_made_for(claim_id, verdict):
    _, rule = RULES[claim_id]
    judged = rule(CASES[claim_id][verdict]())
    found = [(part.statement, str(part.estimate), part.verdict) for part in judged.parts]
    assert judged.verdict == verdict, (found, judged.failed)
    assert judged.why


@pytest.mark.parametrize("claim_id", sorted(RULES))
def test_every_claim_can_be_supported_and_reversed(claim_id):
    assert {"supported", "reversed"} <= set(CASES[claim_id]), f"add made-up runs for {claim_id} to a file of cases"


@pytest.mark.parametrize("claim_id", sorted(RULES))
def test_nothing_run_is_no_verdict(claim_id):
    claim, rule = RULES[claim_id]
    nothing = CASES[claim_id]["supported"]().iloc[:0]
    assert rule(nothing).verdict == record(claim, ()).verdict == "not testable here"


@pytest.mark.parametrize("claim_id", sorted(RULES))
def test_claim_says_where_it_stands_and_how_it_is_judged(claim_id):
    claim, _ = RULES[claim_id]
    assert all((claim.source, claim.study, claim.statement, claim.paper, claim.rule))
    assert claim.id == claim_id
