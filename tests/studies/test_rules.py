"""Each claim's rule, fed with made-up runs: plainly true, plainly false, undecidable."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from scala_lab.study.api import all_studies
from scala_lab.study.verdicts import record

WANTED = ("reproduced", "contradicted", "inconclusive")

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


@pytest.mark.parametrize("verdict", WANTED)
@pytest.mark.parametrize("claim_id", sorted(RULES))
def test_rule_finds_the_verdict_that_the_runs_were_made_for(claim_id, verdict):
    assert claim_id in CASES, f"no made-up runs for {claim_id}: add them to a file of cases beside this one"
    _, rule = RULES[claim_id]
    judged = rule(CASES[claim_id][verdict]())
    assert judged.verdict == verdict, [(part.statement, str(part.estimate), part.verdict) for part in judged.parts]


@pytest.mark.parametrize("claim_id", sorted(RULES))
def test_nothing_run_is_no_verdict(claim_id):
    claim, rule = RULES[claim_id]
    nothing = CASES[claim_id]["reproduced"]().iloc[:0]
    assert rule(nothing).verdict == record(claim, ()).verdict == "not run"


@pytest.mark.parametrize("claim_id", sorted(RULES))
def test_claim_says_where_it_stands_and_how_it_is_judged(claim_id):
    claim, _ = RULES[claim_id]
    assert all((claim.source, claim.study, claim.statement, claim.paper, claim.rule))
    assert claim.id == claim_id
