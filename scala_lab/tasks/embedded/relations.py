"""Set relations between meanings, and what a quantifier makes of them.

A relation between two predicates B and B' is the set of cells of their Venn diagram that may be inhabited: a cell
(b, b') says whether an individual is in B and in B'. So `B is within B'` rules out (1, 0), and negating B flips the
first bit. A quantified sentence Q(A, B) is checked on all small populations that respect the relations of the
restrictors A, A' and of the predicates B, B': it entails Q'(A', B') when no population makes the first true and the
second false, and contradicts it when none makes both true. Restrictors are never empty.
"""

from __future__ import annotations

from functools import cache

import numpy as np

Relation = frozenset[tuple[int, int]]

EQUAL: Relation = frozenset({(1, 1), (0, 0)})
WITHIN: Relation = frozenset({(1, 1), (0, 1), (0, 0)})
AROUND: Relation = frozenset({(1, 1), (1, 0), (0, 0)})
DISJOINT: Relation = frozenset({(1, 0), (0, 1), (0, 0)})
OTHER: Relation = frozenset({(1, 1), (1, 0), (0, 1), (0, 0)})

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
QUANTIFIERS = ("every", "some", "no", "most", "not every")

_QUICK = 7000
"""Populations that one judgement looks at, at most."""

_NAMED = {relation: relation for relation in (EQUAL, WITHIN, AROUND, DISJOINT, OTHER)}


@cache
def negate(relation: Relation, first: bool, second: bool) -> Relation:
    """The relation after negating the first predicate, the second, or both."""
    flipped = frozenset((b ^ first, c ^ second) for b, c in relation)
    return _NAMED.get(flipped, flipped)


def meet(relations: list[Relation]) -> Relation:
    """Relation of two intersections, from the relations of their parts in turn.

    Sound for parts that intersect (`small` and `dog`): disjoint parts make the wholes disjoint; parts that are all
    equal or within make the whole within; mixed directions say nothing.
    """
    result = EQUAL
    for relation in relations:
        if relation is DISJOINT:
            return DISJOINT
        if relation is EQUAL or result is OTHER:
            continue
        result = relation if result in (EQUAL, relation) else OTHER
    return DISJOINT if DISJOINT in relations else result


def _holds(quantifier: str, restrictor_and_body: np.ndarray, restrictor: np.ndarray) -> np.ndarray:
    if quantifier == "every":
        return restrictor_and_body == restrictor
    if quantifier == "some":
        return restrictor_and_body > 0
    if quantifier == "no":
        return restrictor_and_body == 0
    if quantifier == "most":
        return 2 * restrictor_and_body > restrictor
    return restrictor_and_body < restrictor


@cache
def _populations(cells: int) -> np.ndarray:
    """All ways to put 0..m individuals into each cell, with m as large as stays quick."""
    most = next(m for m in (4, 3, 2, 1) if (m + 1) ** cells <= _QUICK)
    return np.indices((most + 1,) * cells, dtype=np.int16).reshape(cells, -1).T


@cache
def judge(quantifier: str, other: str, restrictors: Relation, bodies: Relation) -> int:
    """ENTAILMENT, NEUTRAL or CONTRADICTION of `other(A', B')` given `quantifier(A, B)`."""
    cells = [a + b for a in sorted(restrictors) if any(a) for b in sorted(bodies)]
    counts = _populations(len(cells))
    a, a2, b, b2 = (np.array(column, dtype=np.int16) for column in zip(*cells, strict=True))
    size, size2 = counts @ a, counts @ a2
    possible = (size > 0) & (size2 > 0)
    first = possible & _holds(quantifier, counts @ (a * b), size)
    second = _holds(other, counts @ (a2 * b2), size2)
    if not (first & ~second).any():
        return ENTAILMENT
    return NEUTRAL if (first & second).any() else CONTRADICTION
