"""All claims by id, each with the rule that judges it, collected from the modules of this package.

A module of claims holds `RULES`, a tuple of (claim, rule function). The rule takes the tidy frame that the claim's
study passes, one row per run, and returns the claim with what was measured. Adding a claim is adding a pair.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import scala_lab.claims
from scala_lab.errors import UserError, nearest
from scala_lab.study.verdicts import Claim, ClaimRecord

if TYPE_CHECKING:
    import pandas as pd

Rule = Callable[["pd.DataFrame"], ClaimRecord]


@cache
def registry() -> Mapping[str, tuple[Claim, Rule]]:
    """Every claim and its rule by id, in the order of their numbers.

    Raises:
        ValueError: Two modules hold a claim of the same id.
    """
    found: dict[str, tuple[Claim, Rule]] = {}
    for module in pkgutil.iter_modules(scala_lab.claims.__path__, "scala_lab.claims."):
        for claim, rule in getattr(importlib.import_module(module.name), "RULES", ()):
            if claim.id in found:
                raise ValueError(f"claim {claim.id} stands in two places, one of them {module.name}")
            found[claim.id] = (claim, rule)
    return MappingProxyType({key: found[key] for key in sorted(found, key=_number)})


def find_claim(claim_id: str) -> tuple[Claim, Rule]:
    """A claim and its rule, or an error that names the closest id."""
    known = registry()
    if claim_id not in known:
        raise UserError(f"unknown claim {claim_id!r}: {nearest(claim_id, known)}")
    return known[claim_id]


def _number(claim_id: str) -> int:
    return int(claim_id.removeprefix("C"))
