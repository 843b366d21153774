"""What the pair tasks talk about: scenes of quantified noun phrases, how two of them relate, and their wording.

Set relations between meanings, and what a quantifier makes of them.

A relation between two predicates B and B' is the set of cells of their Venn diagram that may be inhabited: a cell
(b, b') says whether an individual is in B and in B'. So `B is within B'` rules out (1, 0), and negating B flips the
first bit. A quantified sentence Q(A, B) is checked on all small populations that respect the relations of the
restrictors A, A' and of the predicates B, B': it entails Q'(A', B') when no population makes the first true and the
second false, and contradicts it when none makes both true. Restrictors are never empty.

What the pair tasks talk about: quantified noun phrases that do things, and how two of them relate in meaning.

A definite and an indefinite object are read alike; objects are existential, so chasing a dog says nothing about
chasing a cat. Adjectives and relative clauses intersect with the noun.

From scenes to sentences and questions, in active or passive voice.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from scala_lab.data.synthetic import lexicon
from scala_lab.data.synthetic.words import (
    LIVING,
    OPPOSITES,
    PARTICIPLE,
    PAST,
    PEOPLE,
    THINGS,
    Draw,
    ancestors,
    article,
    groups,
    leader,
    plural,
)

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


class Phrase(NamedTuple):
    """A noun with its modifiers: `small dog that slept`."""

    noun: str
    adjective: str | None = None
    clause: Action | None = None


class Action(NamedTuple):
    """What is done: verb, object, circumstances, and whether it was not done."""

    verb: str
    object: Phrase | None = None
    place: str | None = None
    time: str | None = None
    negated: bool = False


class Scene(NamedTuple):
    """A statement: quantifier (or `the`), who, what."""

    quantifier: str
    subject: Phrase
    action: Action


@cache
def relate_words(kind: str, first: str | None, second: str | None) -> Relation:
    """Relation of two words of one kind; a missing one restricts nothing."""
    if first is None or second is None:
        return EQUAL if first is second else (AROUND if first is None else WITHIN)
    first, second = leader(kind, first), leader(kind, second)
    if first == second:
        return EQUAL
    if second in ancestors(kind, first):
        return WITHIN
    if first in ancestors(kind, second):
        return AROUND
    if kind == "noun":
        return DISJOINT
    if any(leader(kind, word) == second for word in OPPOSITES.get(kind, {}).get(first, ())):
        return DISJOINT
    return OTHER


def relate_phrases(first: Phrase, second: Phrase) -> Relation:
    """Relation of what two noun phrases denote."""
    parts = [
        relate_words("noun", first.noun, second.noun),
        relate_words("adjective", first.adjective, second.adjective),
    ]
    if first.clause is not None and second.clause is not None:
        parts.append(relate_actions(first.clause, second.clause))
    elif first.clause is not second.clause:
        parts.append(AROUND if first.clause is None else WITHIN)
    return meet(parts)


def relate_actions(first: Action, second: Action) -> Relation:
    """Relation of the sets of those who do the one and the other."""
    verbs = relate_words("verb", first.verb, second.verb)
    around = [
        relate_words("place", first.place, second.place),
        relate_words("time", first.time, second.time),
    ]
    if first.object is not None and second.object is not None:
        around.append(relate_phrases(first.object, second.object))
    elif first.object is not second.object:
        around.append(OTHER)
    if verbs is DISJOINT:
        relation = DISJOINT if all(part is EQUAL for part in around) else OTHER
    else:
        relation = meet([verbs, *(OTHER if part is DISJOINT else part for part in around)])
    return negate(relation, first.negated, second.negated)


_ON_LIVING = [base for base, *_ in groups(lexicon.VERBS_ON_LIVING + "," + lexicon.VERBS_ON_ANY)]
_ON_THINGS = [base for base, *_ in groups(lexicon.VERBS_ON_THINGS + "," + lexicon.VERBS_ON_ANY)]
_ALONE = [base for base, *_ in groups(lexicon.VERBS_ALONE)]
_ADJECTIVES = {True: lexicon.ADJECTIVES_LIVING.split(), False: lexicon.ADJECTIVES_THINGS.split()}
LIVING_NOUNS = frozenset(LIVING) | {"animal", "person", "creature", "human"}
_PLACES = [word for group in lexicon.PLACES.values() for word in group.split()]
_TIMES = [word for group in lexicon.TIMES.values() for word in group.split()]


def adjective_for(draw: Draw, noun: str) -> str:
    """An adjective that suits the noun."""
    return draw.pick(_ADJECTIVES[noun in LIVING_NOUNS])


def draw_place(draw: Draw) -> str:
    """Where."""
    return draw.pick(_PLACES)


def draw_time(draw: Draw) -> str:
    """When."""
    return draw.pick(_TIMES)


def draw_phrase(draw: Draw, living: bool, depth: int, adjectives: float = 0.4) -> Phrase:
    """A random noun phrase; `depth` bounds the nesting of relative clauses."""
    noun = draw.pick(LIVING if living else THINGS)
    adjective = adjective_for(draw, noun) if draw.one_in(adjectives) else None
    clause = None
    if depth > 0 and living and draw.one_in(0.5):
        clause = draw_action(draw, depth - 1, circumstances=0.1, negations=0.1)
    return Phrase(noun, adjective, clause)


def draw_action(
    draw: Draw, depth: int, circumstances: float = 0.25, negations: float = 0.1, transitive: float = 0.75
) -> Action:
    """A random thing to do."""
    what = None
    if draw.one_in(transitive):
        living = draw.one_in(0.45)
        verb = draw.pick(_ON_LIVING if living else _ON_THINGS)
        what = draw_phrase(draw, living, depth - 1, adjectives=0.3)
    else:
        verb = draw.pick(_ALONE)
    place = draw_place(draw) if draw.one_in(circumstances) else None
    time = draw_time(draw) if draw.one_in(circumstances) else None
    return Action(verb, what, place, time, draw.one_in(negations))


_DETERMINERS: dict[str, tuple[tuple[str, bool], ...]] = {
    "every": (("every", False), ("each", False), ("all", True)),
    "some": (("a", False), ("some", True), ("at least one", False)),
    "no": (("no", False), ("not a single", False)),
    "most": (("most", True), ("more than half of the", True)),
    "not every": (("not every", False), ("not all", True)),
    "the": (("the", False),),
}
"""Wordings of a quantifier, each with whether the noun is plural."""


def _phrase(draw: Draw, phrase: Phrase, many: bool = False) -> str:
    noun = plural(phrase.noun) if many else phrase.noun
    text = noun if phrase.adjective is None else f"{phrase.adjective} {noun}"
    if phrase.clause is not None:
        text += (" who " if phrase.noun in PEOPLE else " that ") + _active(draw, phrase.clause)
    return text


def _with_article(draw: Draw, phrase: Phrase) -> str:
    text = _phrase(draw, phrase)
    return f"the {text}" if draw.one_in(0.4) else f"{article(text)} {text}"


def _quantified(draw: Draw, quantifier: str, phrase: Phrase) -> str:
    determiner, many = draw.pick(_DETERMINERS[quantifier])
    text = _phrase(draw, phrase, many)
    return f"{article(text) if determiner == 'a' else determiner} {text}"


def circumstances(draw: Draw, action: Action) -> str:
    """Where and when, in either order, with a leading blank; empty where neither is told."""
    place = "" if action.place is None else f" {place_words(action.place)}"
    time = "" if action.time is None else f" {time_words(action.time)}"
    return place + time if draw.one_in(0.6) else time + place


def place_words(place: str) -> str:
    """`in the park`, or the kind of place as it stands."""
    return place if place.endswith("doors") else f"in the {place}"


def time_words(time: str) -> str:
    """`on monday`, or the kind of day as it stands."""
    return time if time.startswith("on ") else f"on {time}"


def _done(action: Action) -> str:
    return f"did not {action.verb}" if action.negated else PAST[action.verb]


def _active(draw: Draw, action: Action) -> str:
    what = "" if action.object is None else f" {_with_article(draw, action.object)}"
    return f"{_done(action)}{what}{circumstances(draw, action)}"


def _passive(draw: Draw, action: Action, by: str) -> str:
    assert action.object is not None
    was = "was not" if action.negated else "was"
    return f"{_with_article(draw, action.object)} {was} {PARTICIPLE[action.verb]} by {by}{circumstances(draw, action)}"


def say(draw: Draw, scene: Scene, passives: float = 0.3) -> str:
    """One wording of a statement, without the full stop.

    Statements whose passive would be ambiguous (a negation or `not every` under a quantifier, a relative clause
    before the circumstances) stay active.
    """
    subject = _quantified(draw, scene.quantifier, scene.subject)
    action = scene.action
    plain = scene.quantifier == "the" or (not action.negated and scene.quantifier != "not every")
    if action.object is not None and plain and scene.subject.clause is None and draw.one_in(passives):
        return _passive(draw, action, subject)
    return f"{subject} {_active(draw, action)}"


def ask(draw: Draw, scene: Scene, asked: str) -> str:
    """One wording of the question for `asked`: who, what, where or when."""
    action = scene.action
    around = circumstances(draw, action)
    subject = f"the {_phrase(draw, scene.subject)}"
    what = None if action.object is None else _with_article(draw, action.object)
    if asked == "who":
        if what is not None and draw.one_in(0.3):
            return f"by whom was {what} {PARTICIPLE[action.verb]}{around} ?"
        return f"{draw.pick(('who', 'which one'))} {PAST[action.verb]}{'' if what is None else ' ' + what}{around} ?"
    if asked == "what":
        if draw.one_in(0.3):
            return f"what was {PARTICIPLE[action.verb]} by {subject}{around} ?"
        return f"what did {subject} {action.verb}{around} ?"
    frame = draw.pick({"where": ("where", "in which place"), "when": ("when", "on which day")}[asked])
    if what is not None and draw.one_in(0.3):
        return f"{frame} was {what} {PARTICIPLE[action.verb]} by {subject}{around} ?"
    return f"{frame} did {subject} {action.verb}{'' if what is None else ' ' + what}{around} ?"
