"""The statements that the pair tasks are about: their meaning, how two meanings relate, and their wording.

A scene is a quantified noun phrase that does something. Adjectives and relative clauses intersect with the noun.
Objects are existential, definite or not, so chasing a dog says nothing about chasing a cat.

A relation between two predicates B and B' is the set of cells (b, b') of their Venn diagram that may be inhabited. So
"B is within B'" rules out (1, 0), and negating B flips the first bit. A quantified sentence Q(A, B) is checked on all
small populations that respect the relations of the restrictors A, A' and of the predicates B, B': it entails Q'(A', B')
when no population makes the first true and the second false, and contradicts it when none makes both true. Restrictors
are never empty.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from scala_lab.data.synthetic import lexicon
from scala_lab.data.synthetic.lexicon import LISTS, VERBS, Rng


class Phrase(NamedTuple):
    """A noun with its modifiers: `small dog that slept`."""

    noun: str
    adjective: str | None = None
    clause: Action | None = None


class Action(NamedTuple):
    """A predicate: verb, object, circumstances, and whether it is negated."""

    verb: str
    object: Phrase | None = None
    place: str | None = None
    time: str | None = None
    negated: bool = False


class Scene(NamedTuple):
    """A statement: quantifier (or `the`), subject, predicate."""

    quantifier: str
    subject: Phrase
    action: Action


_ON_LIVING, _ON_THINGS = VERBS["on living"] + VERBS["on any"], VERBS["on things"] + VERBS["on any"]
LIVING_NOUNS = frozenset(lexicon.LIVING) | {"animal", "person", "creature", "human"}
PLACES, TIMES = ([word for group in lexicon.CHILDREN[kind].values() for word in group] for kind in ("place", "time"))


def draw_adjective(rng: Rng, noun: str) -> str:
    """Draw an adjective that suits the noun."""
    return rng.choice(LISTS["on living" if noun in LIVING_NOUNS else "on things"])


def draw_phrase(rng: Rng, living: bool, depth: int, adjectives: float = 0.4) -> Phrase:
    """Draw a noun phrase with relative clauses nested at most `depth` levels."""
    noun = rng.choice(lexicon.LIVING if living else lexicon.THINGS)
    adjective = draw_adjective(rng, noun) if rng.bernoulli(adjectives) else None
    with_clause = depth > 0 and living and rng.bernoulli(0.5)
    return Phrase(noun, adjective, draw_action(rng, depth - 1, circumstances=0.1) if with_clause else None)


def draw_action(
    rng: Rng, depth: int, circumstances: float = 0.25, negations: float = 0.1, transitive: float = 0.75
) -> Action:
    """Draw a predicate; the rates say how often it has a place, a time, a negation and an object."""
    patient = None
    if rng.bernoulli(transitive):
        living = rng.bernoulli(0.45)
        verb = rng.choice(_ON_LIVING if living else _ON_THINGS)
        patient = draw_phrase(rng, living, depth - 1, adjectives=0.3)
    else:
        verb = rng.choice(VERBS["intransitive"])
    place = rng.choice(PLACES) if rng.bernoulli(circumstances) else None
    time = rng.choice(TIMES) if rng.bernoulli(circumstances) else None
    return Action(verb, patient, place, time, rng.bernoulli(negations))


Relation = frozenset[tuple[int, int]]

EQUAL: Relation = frozenset({(1, 1), (0, 0)})
WITHIN: Relation = frozenset({(1, 1), (0, 1), (0, 0)})
AROUND: Relation = frozenset({(1, 1), (1, 0), (0, 0)})
DISJOINT: Relation = frozenset({(1, 0), (0, 1), (0, 0)})
OTHER: Relation = frozenset({(1, 1), (1, 0), (0, 1), (0, 0)})


@cache
def relate_words(kind: str, first: str | None, second: str | None) -> Relation:
    """Relate the extensions of two words of one kind; a missing word restricts nothing."""
    if first is None or second is None:
        return EQUAL if first is second else (AROUND if first is None else WITHIN)
    first, second = lexicon.canonical(kind, first), lexicon.canonical(kind, second)
    if first == second:
        return EQUAL
    if second in lexicon.ancestors(kind, first):
        return WITHIN
    if first in lexicon.ancestors(kind, second):
        return AROUND
    opposites = lexicon.OPPOSITES.get(kind, {}).get(first, ())
    if kind == "noun" or any(lexicon.canonical(kind, word) == second for word in opposites):
        return DISJOINT
    return OTHER


def relate_scenes(first: Scene, second: Scene) -> tuple[Relation, Relation]:
    """Relate the subjects of two statements, and their predicates."""
    return relate_phrases(first.subject, second.subject), relate_actions(first.action, second.action)


def relate_phrases(first: Phrase, second: Phrase) -> Relation:
    """Relate the extensions of two noun phrases."""
    adjectives = relate_words("adjective", first.adjective, second.adjective)
    clauses = relate_actions(first.clause, second.clause)
    return _meet(relate_words("noun", first.noun, second.noun), adjectives, clauses)


def relate_actions(first: Action | None, second: Action | None) -> Relation:
    """Relate the sets of individuals of which two predicates are true; a missing one is true of all."""
    verbs = relate_words("verb", first and first.verb, second and second.verb)
    if first is None or second is None:
        return verbs
    rest = [relate_words("place", first.place, second.place), relate_words("time", first.time, second.time)]
    if first.object is not None and second.object is not None:
        rest.append(relate_phrases(first.object, second.object))
    elif first.object is not second.object:
        rest.append(OTHER)
    if verbs == DISJOINT:
        relation = DISJOINT if all(part == EQUAL for part in rest) else OTHER
    else:
        relation = _meet(verbs, *(OTHER if part == DISJOINT else part for part in rest))
    return negate(relation, first.negated, second.negated)


@cache
def negate(relation: Relation, first: bool, second: bool) -> Relation:
    """Return the relation after negating the first predicate, the second, or both."""
    return frozenset((b ^ first, c ^ second) for b, c in relation)


@cache
def _meet(*relations: Relation) -> Relation:
    """Relate two intersections (`small` and `dog`) by the relations of their parts; mixed directions say nothing."""
    if DISJOINT in relations:
        return DISJOINT
    unequal = set(relations) - {EQUAL} or {EQUAL}
    return unequal.pop() if len(unequal) == 1 else OTHER


ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2

_TRUE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "every": lambda both, restrictor: both == restrictor,
    "some": lambda both, restrictor: both > 0,
    "no": lambda both, restrictor: both == 0,
    "most": lambda both, restrictor: 2 * both > restrictor,
    "not every": lambda both, restrictor: both < restrictor,
}
"""Truth of a quantified sentence, from the number of individuals in restrictor and predicate and in the restrictor."""
QUANTIFIERS = tuple(_TRUE)

_MAX_POPULATIONS = 7000  # limit on the populations of one judgement; larger ones change no judgement


@cache
def judge(quantifier: str, other: str, restrictors: Relation, predicates: Relation) -> int:
    """Judge `other(A', B')` given `quantifier(A, B)`: ENTAILMENT, NEUTRAL or CONTRADICTION."""
    cells = [a + b for a in sorted(restrictors) if any(a) for b in sorted(predicates)]
    counts = _populations(len(cells))
    a, a2, b, b2 = (np.array(column, dtype=np.int16) for column in zip(*cells, strict=True))
    size, size2 = counts @ a, counts @ a2
    first = (size > 0) & (size2 > 0) & _TRUE[quantifier](counts @ (a * b), size)
    second = _TRUE[other](counts @ (a2 * b2), size2)
    if not (first & ~second).any():
        return ENTAILMENT
    return NEUTRAL if (first & second).any() else CONTRADICTION


@cache
def _populations(cells: int) -> np.ndarray:
    """List the populations with 0 to m individuals in each cell, for the largest m <= 4 within _MAX_POPULATIONS."""
    largest = next(m for m in (4, 3, 2, 1) if (m + 1) ** cells <= _MAX_POPULATIONS)
    return np.indices((largest + 1,) * cells, dtype=np.int16).reshape(cells, -1).T


def word_statement(rng: Rng, scene: Scene) -> str:
    """Word a statement in the active or, where that is unambiguous, the passive voice, without the full stop."""
    action = scene.action
    determiner, many = rng.choice(lexicon.DETERMINERS[scene.quantifier])
    subject = _word_phrase(rng, scene.subject, many)
    subject = lexicon.indefinite(subject) if determiner == "a" else f"{determiner} {subject}"
    unambiguous = scene.quantifier == "the" or (not action.negated and scene.quantifier != "not every")
    if action.object is not None and unambiguous and scene.subject.clause is None and rng.bernoulli(0.3):
        was = "was not" if action.negated else "was"
        patient = _word_object(rng, action).strip()
        return f"{patient} {was} {lexicon.PARTICIPLE[action.verb]} by {subject}{_word_circumstances(rng, action)}"
    return f"{subject} {_word_active(rng, action)}"


def word_question(rng: Rng, scene: Scene, slot: str) -> str:
    """Word the question for a slot of the scene (who, what, where or when), or one that asks how, may or why."""
    verb = scene.action.verb
    around = _word_circumstances(rng, scene.action)
    subject = _word_phrase(rng, scene.subject)
    if slot in lexicon.QUESTIONS:
        thing = scene.action.object
        patient = "" if thing is None else f" {lexicon.indefinite(_word_phrase(rng, thing))}"
        return f"{rng.choice(lexicon.QUESTIONS[slot]).format(lexicon.indefinite(subject))} {verb}{patient}{around} ?"
    subject, patient = f"the {subject}", _word_object(rng, scene.action)
    if slot == "who":
        if patient and rng.bernoulli(0.3):
            return f"by whom was{patient} {lexicon.PARTICIPLE[verb]}{around} ?"
        return f"{rng.choice(('who', 'which one'))} {lexicon.PAST[verb]}{patient}{around} ?"
    if slot == "what":
        if rng.bernoulli(0.3):
            return f"what was {lexicon.PARTICIPLE[verb]} by {subject}{around} ?"
        return f"what did {subject} {verb}{around} ?"
    adverb = rng.choice({"where": ("where", "in which place"), "when": ("when", "on which day")}[slot])
    if patient and rng.bernoulli(0.3):
        return f"{adverb} was{patient} {lexicon.PARTICIPLE[verb]} by {subject}{around} ?"
    return f"{adverb} did {subject} {verb}{patient}{around} ?"


def _word_circumstances(rng: Rng, action: Action) -> str:
    """Word place and time in either order, each after a blank: ` outdoors on monday`."""
    place, time = action.place or "", action.time or ""
    if place:
        place = f" {place}" if place.endswith("doors") else f" in the {place}"
    if time:
        time = f" {time}" if time.startswith("on ") else f" on {time}"
    return place + time if rng.bernoulli(0.6) else time + place


def _word_phrase(rng: Rng, phrase: Phrase, many: bool = False) -> str:
    noun = lexicon.plural(phrase.noun) if many else phrase.noun
    text = noun if phrase.adjective is None else f"{phrase.adjective} {noun}"
    if phrase.clause is not None:
        text += (" who " if phrase.noun in lexicon.PEOPLE else " that ") + _word_active(rng, phrase.clause)
    return text


def _word_active(rng: Rng, action: Action) -> str:
    verb = f"did not {action.verb}" if action.negated else lexicon.PAST[action.verb]
    return f"{verb}{_word_object(rng, action)}{_word_circumstances(rng, action)}"


def _word_object(rng: Rng, action: Action) -> str:
    """Word the object after a blank, or nothing where there is none."""
    if action.object is None:
        return ""
    text = _word_phrase(rng, action.object)
    return f" the {text}" if rng.bernoulli(0.4) else f" {lexicon.indefinite(text)}"
