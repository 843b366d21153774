"""The words of the embedded tasks and how they relate, and the seeded generator that chooses among them.

They are written down in `grammar.toml`, with the frames of the sentences. A word's kind is its part of speech, or
`place` or `time`.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

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
