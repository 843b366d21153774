"""How words relate: synonyms, kinds, opposites, forms; and a drawer of words that can be shy of some of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TypeVar

from scala_lab.data.synthetic import lexicon

T = TypeVar("T")


def groups(text: str) -> list[list[str]]:
    """The words of `a b, c d` as [[a, b], [c, d]]."""
    return [group.split() for group in text.split(",")]


def _leaders(*texts: str) -> dict[str, str]:
    """Each synonym -> the first word of its group."""
    return {word: group[0] for text in texts for group in groups(text) for word in group}


def _parents(*tables: dict[str, str]) -> dict[str, str]:
    return {child: parent for table in tables for parent, children in table.items() for child in children.split()}


_VERB_GROUPS = groups(
    ",".join(
        (
            lexicon.VERBS_ON_THINGS,
            lexicon.VERBS_ON_LIVING,
            lexicon.VERBS_ON_ANY,
            lexicon.VERBS_ALONE,
            lexicon.EXTRA_VERB_FORMS,
        )
    )
)
PAST = {base: past for base, past, _ in _VERB_GROUPS}
PARTICIPLE = {base: participle for base, _, participle in _VERB_GROUPS}

LEADER = {
    "noun": _leaders(lexicon.NOUN_SYNONYMS),
    "verb": _leaders(lexicon.VERB_SYNONYMS),
    "adjective": _leaders(lexicon.ADJECTIVE_SYNONYMS),
}
PARENT = {
    "noun": _parents(lexicon.KINDS),
    "verb": _parents(lexicon.VERB_KINDS),
    "adjective": {},
    "place": _parents(lexicon.PLACES),
    "time": _parents(lexicon.TIMES),
}
CHILDREN = {
    "noun": {parent: children.split() for parent, children in lexicon.KINDS.items()},
    "verb": {parent: children.split() for parent, children in lexicon.VERB_KINDS.items()},
    "place": {parent: children.split() for parent, children in lexicon.PLACES.items()},
    "time": {parent: children.split() for parent, children in lexicon.TIMES.items()},
}
SYNONYMS: dict[str, dict[str, list[str]]] = {
    kind: {
        word: [other for other in members if other != word]
        for members in groups(text)
        for word in members
        if len(members) > 1
    }
    for kind, text in (
        ("noun", lexicon.NOUN_SYNONYMS),
        ("verb", lexicon.VERB_SYNONYMS),
        ("adjective", lexicon.ADJECTIVE_SYNONYMS),
    )
}
OPPOSITES: dict[str, dict[str, list[str]]] = {
    kind: {word: [other for other in members if other != word] for members in groups(text) for word in members}
    for kind, text in (("verb", lexicon.VERB_OPPOSITES), ("adjective", lexicon.ADJECTIVE_GROUPS))
}

ALL_NOUNS = [*lexicon.KINDS["animal"].split(), *lexicon.KINDS["person"].split(), *lexicon.KINDS["object"].split()]
LIVING = [
    word
    for parent in ("animal", "person")
    for child in lexicon.KINDS[parent].split()
    for word in (child, *lexicon.KINDS[child].split())
]
PEOPLE = {"person"} | {
    word for child in lexicon.KINDS["person"].split() for word in (child, *lexicon.KINDS[child].split())
}
PEOPLE |= {other for word in list(PEOPLE) for other in SYNONYMS["noun"].get(word, [])}
THINGS = [word for child in lexicon.KINDS["object"].split() for word in (child, *lexicon.KINDS[child].split())]


def leader(kind: str, word: str) -> str:
    """The word that stands for all its synonyms."""
    return LEADER.get(kind, {}).get(word, word)


@cache
def ancestors(kind: str, word: str) -> tuple[str, ...]:
    """Hypernyms from near to far."""
    found = []
    parent = PARENT[kind].get(leader(kind, word))
    while parent is not None:
        found.append(parent)
        parent = PARENT[kind].get(parent)
    return tuple(found)


def plural(noun: str) -> str:
    """More than one of it."""
    if noun in lexicon.PLURALS:
        return lexicon.PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


def article(following: str) -> str:
    """`a` or `an`, by the first letter of the next word."""
    return "an" if following[0] in "aeiou" else "a"


def _every_third(words: Iterable[str]) -> set[str]:
    return set(sorted(words)[::3])


RARE: frozenset[str] = frozenset(
    _every_third(word for child in ALL_NOUNS for word in lexicon.KINDS[child].split())
    | _every_third(base for base, _, _ in _VERB_GROUPS)
    | _every_third(word for text in lexicon.OPINIONS.values() for word in text.split())
    | _every_third(word for text in lexicon.EFFECT_VERBS.values() for word in text.split())
    | _every_third(word for text in lexicon.OPINION_NOUNS.values() for word in text.split())
)
"""Words that training rows seldom use and held-out rows use as any other: only pretraining teaches them."""


def all_words() -> list[str]:
    """Every content word in every form, sorted."""
    nouns = {*lexicon.KINDS, *PARENT["noun"], *LEADER["noun"]}
    found = nouns | {plural(noun) for noun in nouns} | {form for forms in _VERB_GROUPS for form in forms}
    texts = [lexicon.ADJECTIVE_GROUPS, lexicon.ADJECTIVE_SYNONYMS, lexicon.ASPECTS]
    texts += [lexicon.INTENSIFIERS, lexicon.DOWNTONERS, *lexicon.PLACES, *lexicon.TIMES]
    for table in (lexicon.OPINIONS, lexicon.OPINION_NOUNS, lexicon.OPINION_VERBS, lexicon.EFFECT_VERBS):
        texts += table.values()
    texts += [*lexicon.PLACES.values(), *lexicon.TIMES.values()]
    return sorted(found | {word for text in texts for group in groups(text) for word in group})


class Draw:
    """Seeded choices. With `shyness` s a rare word is drawn again with probability s.

    The seed is a string: `random.Random` hashes it with SHA-512, so choices are the same in every process.
    """

    def __init__(self, seed: str, shyness: float = 0.0) -> None:
        self._random = random.Random(seed)
        self.chance = self._random.random
        self.shyness = shyness

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely as the other, but for shyness."""
        item = items[int(self.chance() * len(items))]
        while self.shyness and item in RARE and self.chance() < self.shyness:
            other = items[int(self.chance() * len(items))]
            if other == item and len(items) < 3:
                break
            item = other
        return item

    def one_in(self, probability: float) -> bool:
        """True with that probability."""
        return self.chance() < probability

    def normal(self, deviation: float) -> float:
        """A Gaussian number around zero."""
        return self._random.gauss(0.0, deviation)

    def shuffle(self, items: list[T]) -> None:
        """In place."""
        self._random.shuffle(items)
