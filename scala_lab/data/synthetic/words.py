"""How words relate (synonyms, hypernyms, opposites, inflected forms), and a seeded generator that chooses words.

A word's kind is its part of speech, or `place` or `time`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from scala_lab.data.synthetic import lexicon

T = TypeVar("T")


def groups(text: str) -> list[list[str]]:
    """Split a list of the lexicon into its groups.

    >>> groups("large big, small little")
    [['large', 'big'], ['small', 'little']]
    """
    return [group.split() for group in text.split(",")]


def _others(text: str) -> dict[str, list[str]]:
    """Map each word to the other members of its group."""
    return {word: [other for other in group if other != word] for group in groups(text) for word in group}


SYNONYMS = {kind: _others(text) for kind, text in lexicon.SYNONYMS.items()}
OPPOSITES = {kind: _others(text) for kind, text in lexicon.OPPOSITES.items()}
_CANONICAL = {
    kind: {word: group[0] for group in groups(text) for word in group} for kind, text in lexicon.SYNONYMS.items()
}
_TAXONOMIES = {"noun": lexicon.NOUNS, "verb": lexicon.VERBS, "place": lexicon.PLACES, "time": lexicon.TIMES}
CHILDREN = {
    kind: {parent: children.split() for parent, children in table.items()} for kind, table in _TAXONOMIES.items()
}
PARENT = {
    kind: {child: parent for parent, children in table.items() for child in children}
    for kind, table in CHILDREN.items()
}
HYPERNYMS = {kind: {word: [parent] for word, parent in table.items()} for kind, table in PARENT.items()}
SIBLINGS = {
    kind: {word: [other for other in CHILDREN[kind][parent] if other != word] for word, parent in table.items()}
    for kind, table in PARENT.items()
}

_VERB_FORMS = [forms for text in lexicon.VERB_FORMS.values() for forms in groups(text)]
PAST = {base: past for base, past, *_ in _VERB_FORMS}
PARTICIPLE = {forms[0]: forms[-1] for forms in _VERB_FORMS}


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
    if noun in lexicon.PLURALS:
        return lexicon.PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


def indefinite(text: str) -> str:
    """Put `a` or `an` before a text, by its first letter."""
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


_OPINION_TABLES = (lexicon.OPINIONS, lexicon.EFFECT_VERBS, lexicon.OPINION_NOUNS)
_THINNED = (
    PARENT["noun"].keys() - CHILDREN["noun"].keys(),
    PAST.keys(),
    *(" ".join(table.values()).split() for table in _OPINION_TABLES),
)
RARE = frozenset(word for words in _THINNED for word in sorted(words)[::3])
"""Words that training rows seldom use and held-out rows use as any other: only pretraining teaches them."""


def all_words() -> list[str]:
    """List every content word in every form, sorted."""
    nouns = {*CHILDREN["noun"], *PARENT["noun"], *_CANONICAL["noun"]}
    words = nouns | {plural(noun) for noun in nouns} | {form for forms in _VERB_FORMS for form in forms}
    texts = [lexicon.OPPOSITES["adjective"], lexicon.SYNONYMS["adjective"], lexicon.ASPECTS, lexicon.INTENSIFIERS]
    texts += [lexicon.DOWNTONERS, *lexicon.PLACES, *lexicon.PLACES.values(), *lexicon.TIMES, *lexicon.TIMES.values()]
    texts += [text for table in (*_OPINION_TABLES, lexicon.OPINION_VERBS) for text in table.values()]
    return sorted(words | {word for text in texts for group in groups(text) for word in group})


class Rng:
    """Make seeded random choices, and draw a rare word again with probability `avoid_rare`.

    The seed is a string: `random.Random` hashes it with SHA-512, so choices are the same in every process.
    """

    def __init__(self, seed: str, avoid_rare: float = 0.0) -> None:
        generator = random.Random(seed)
        self.random = generator.random
        self.gauss = generator.gauss
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
