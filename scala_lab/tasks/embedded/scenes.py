"""What the pair tasks talk about: quantified noun phrases that do things, and how two of them relate in meaning.

A definite and an indefinite object are read alike; objects are existential, so chasing a dog says nothing about
chasing a cat. Adjectives and relative clauses intersect with the noun.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from scala_lab.tasks.embedded import lexicon
from scala_lab.tasks.embedded.relations import AROUND, DISJOINT, EQUAL, OTHER, WITHIN, Relation, meet, negate
from scala_lab.tasks.embedded.words import LIVING, OPPOSITES, THINGS, Draw, ancestors, groups, leader


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
