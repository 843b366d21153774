"""The words of the embedded tasks and how they relate, and the statements that the pair tasks are about.

Words and the frames of sentences are written down in `grammar.toml`. A word's kind is its part of speech, or `place` or
`time`.

A scene is a quantified noun phrase that does something. Adjectives and relative clauses intersect with the noun.
Objects are existential, definite or not, so chasing a dog says nothing about chasing a cat.

A relation between two predicates B and B' is the set of cells (b, b') of their Venn diagram that may be inhabited. So
"B is within B'" rules out (1, 0), and negating B flips the first bit. A quantified sentence Q(A, B) is checked on all
small populations that respect the relations of the restrictors A, A' and of the predicates B, B': it entails Q'(A', B')
when no population makes the first true and the second false, and contradicts it when none makes both true. Restrictors
are never empty.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scala_lab.files import read_toml

T = TypeVar("T")

_GRAMMAR = read_toml(Path(__file__).with_name("grammar.toml"))


def _groups(text: str) -> list[list[str]]:
    return [group.split() for group in text.split(",")]


def _others(text: str) -> dict[str, list[str]]:
    """Map each word to the other members of its group."""
    return {word: [other for other in group if other != word] for group in _groups(text) for word in group}


def _choices(entry: Any) -> Sequence[Any]:
    """List what can be chosen: texts, or texts with what the grammar says about them."""
    return tuple(entry.items()) if isinstance(entry, dict) else entry


def _table(name: str, convert: Callable[[Any], T]) -> dict[str, T]:
    """Return a table of the grammar with its entries converted."""
    return {kind: convert(entry) for kind, entry in _GRAMMAR[name].items()}


FRAMES, QUESTIONS, DETERMINERS = (_table(name, _choices) for name in ("frames", "questions", "determiners"))
LISTS, EDITS = _table("lists", str.split), _GRAMMAR["edits"]
OPINIONS = _table("opinions", lambda table: {word: int(value) for value in table for word in table[value].split()})
SYNONYMS, OPPOSITES = _table("synonyms", _others), _table("opposites", _others)
_CANONICAL = _table("synonyms", lambda text: {word: group[0] for group in _groups(text) for word in group})
CHILDREN = _table("taxonomies", lambda table: {parent: words.split() for parent, words in table.items()})
PARENT = {kind: {word: parent for parent in table for word in table[parent]} for kind, table in CHILDREN.items()}
HYPERNYMS = {kind: {word: [parent] for word, parent in table.items()} for kind, table in PARENT.items()}
SIBLINGS = _table("taxonomies", lambda table: _others(",".join(table.values())))

_FORMS = _table("verbs", _groups)
VERBS = {objects: [base for base, *_ in verbs] for objects, verbs in _FORMS.items()}
PAST = {forms[0]: forms[1] for verbs in _FORMS.values() for forms in verbs}
PARTICIPLE = {forms[0]: forms[-1] for verbs in _FORMS.values() for forms in verbs}


def _two_levels(noun: str) -> list[str]:
    """List the hyponyms of a noun, each followed by its own."""
    return [word for child in CHILDREN["noun"][noun] for word in (child, *CHILDREN["noun"][child])]


LIVING = [*_two_levels("animal"), *_two_levels("person")]
THINGS = _two_levels("object")
PEOPLE = {"person", *_two_levels("person")}
PEOPLE |= {other for word in PEOPLE for other in SYNONYMS["noun"].get(word, ())}


def canonical(kind: str, word: str) -> str:
    """Return the word that stands for all its synonyms."""
    return _CANONICAL.get(kind, {}).get(word, word)


@cache
def ancestors(kind: str, word: str) -> tuple[str, ...]:
    """List the hypernyms of a word from near to far."""
    parent = PARENT.get(kind, {}).get(canonical(kind, word))
    return () if parent is None else (parent, *ancestors(kind, parent))


def plural(noun: str) -> str:
    """Inflect a noun: `ponies`, `dishes`, `fish`."""
    if noun in _GRAMMAR["plurals"]:
        return _GRAMMAR["plurals"][noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


def indefinite(text: str) -> str:
    """Put `a` or `an` before a text, by its first letter."""
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


_LEAVES = PARENT["noun"].keys() - CHILDREN["noun"].keys()
_THINNED = (_LEAVES, PAST, OPINIONS["adjective"], OPINIONS["effect"], OPINIONS["noun"])
RARE = frozenset(word for words in _THINNED for word in sorted(words)[::3])
"""Words that training rows seldom use and dev rows use as any other: only pretraining teaches them."""


def all_words() -> list[str]:
    """List every content word in every form, sorted."""
    nouns = {*CHILDREN["noun"], *PARENT["noun"], *_CANONICAL["noun"]}
    verbs = {*PAST, *PAST.values(), *PARTICIPLE.values()}
    others = {word for table in (*LISTS.values(), *OPINIONS.values()) for word in table}
    adjectives = {*OPPOSITES["adjective"], *SYNONYMS["adjective"]}
    circumstances = " ".join([*CHILDREN["place"], *PARENT["place"], *CHILDREN["time"], *PARENT["time"]]).split()
    return sorted(nouns.union(map(plural, nouns), verbs, adjectives, circumstances, others))


class Rng:
    """Make seeded random choices, and draw a rare word again with probability `avoid_rare`.

    The seed is a string: `random.Random` hashes it with SHA-512, so choices are the same in every process.
    """

    def __init__(self, seed: str, avoid_rare: float = 0.0) -> None:
        generator = random.Random(seed)
        self.random, self.gauss = generator.random, generator.gauss
        self.avoid_rare = avoid_rare

    def choice(self, items: Sequence[T]) -> T:
        """Choose one of the items, all equally likely but for rare words."""
        item = items[int(self.random() * len(items))]
        while self.avoid_rare and item in RARE and self.random() < self.avoid_rare:
            other = items[int(self.random() * len(items))]
            if other == item and len(items) < 3:
                break
            item = other
        return item

    def bernoulli(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability


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
LIVING_NOUNS = frozenset(LIVING) | {"animal", "person", "creature", "human"}
PLACES, TIMES = ([word for group in CHILDREN[kind].values() for word in group] for kind in ("place", "time"))


def draw_adjective(rng: Rng, noun: str) -> str:
    """Draw an adjective that suits the noun."""
    return rng.choice(LISTS["on living" if noun in LIVING_NOUNS else "on things"])


def draw_phrase(rng: Rng, living: bool, depth: int, adjectives: float = 0.4) -> Phrase:
    """Draw a noun phrase with relative clauses nested at most `depth` levels."""
    noun = rng.choice(LIVING if living else THINGS)
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
    first, second = canonical(kind, first), canonical(kind, second)
    if first == second:
        return EQUAL
    if second in ancestors(kind, first):
        return WITHIN
    if first in ancestors(kind, second):
        return AROUND
    opposites = OPPOSITES.get(kind, {}).get(first, ())
    if kind == "noun" or any(canonical(kind, word) == second for word in opposites):
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
    determiner, many = rng.choice(DETERMINERS[scene.quantifier])
    subject = _word_phrase(rng, scene.subject, many)
    subject = indefinite(subject) if determiner == "a" else f"{determiner} {subject}"
    unambiguous = scene.quantifier == "the" or (not action.negated and scene.quantifier != "not every")
    if action.object is not None and unambiguous and scene.subject.clause is None and rng.bernoulli(0.3):
        was = "was not" if action.negated else "was"
        patient = _word_object(rng, action).strip()
        return f"{patient} {was} {PARTICIPLE[action.verb]} by {subject}{_word_circumstances(rng, action)}"
    return f"{subject} {_word_active(rng, action)}"


def word_question(rng: Rng, scene: Scene, slot: str) -> str:
    """Word the question for a slot of the scene (who, what, where or when), or one that asks how, may or why."""
    verb = scene.action.verb
    around = _word_circumstances(rng, scene.action)
    subject = _word_phrase(rng, scene.subject)
    if slot in QUESTIONS:
        thing = scene.action.object
        patient = "" if thing is None else f" {indefinite(_word_phrase(rng, thing))}"
        return f"{rng.choice(QUESTIONS[slot]).format(indefinite(subject))} {verb}{patient}{around} ?"
    subject, patient = f"the {subject}", _word_object(rng, scene.action)
    if slot == "who":
        if patient and rng.bernoulli(0.3):
            return f"by whom was{patient} {PARTICIPLE[verb]}{around} ?"
        return f"{rng.choice(('who', 'which one'))} {PAST[verb]}{patient}{around} ?"
    if slot == "what":
        if rng.bernoulli(0.3):
            return f"what was {PARTICIPLE[verb]} by {subject}{around} ?"
        return f"what did {subject} {verb}{around} ?"
    adverb = rng.choice({"where": ("where", "in which place"), "when": ("when", "on which day")}[slot])
    if patient and rng.bernoulli(0.3):
        return f"{adverb} was{patient} {PARTICIPLE[verb]} by {subject}{around} ?"
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
    noun = plural(phrase.noun) if many else phrase.noun
    text = noun if phrase.adjective is None else f"{phrase.adjective} {noun}"
    if phrase.clause is not None:
        text += (" who " if phrase.noun in PEOPLE else " that ") + _word_active(rng, phrase.clause)
    return text


def _word_active(rng: Rng, action: Action) -> str:
    verb = f"did not {action.verb}" if action.negated else PAST[action.verb]
    return f"{verb}{_word_object(rng, action)}{_word_circumstances(rng, action)}"


def _word_object(rng: Rng, action: Action) -> str:
    """Word the object after a blank, or nothing where there is none."""
    if action.object is None:
        return ""
    text = _word_phrase(rng, action.object)
    return f" the {text}" if rng.bernoulli(0.4) else f" {indefinite(text)}"
