"""The words of the embedded tasks and how they relate, and the seeded generator that chooses among them.

A word's kind is its part of speech, or `place` or `time`. The vocabulary of the shipped encoder is the set of words in
these tables and in the sentence frames, so a new word requires a new pretraining.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_TAXONOMIES: dict[str, dict[str, str]] = {
    "noun": {
        "animal": "dog cat bird horse fish",
        "dog": "poodle beagle terrier collie",
        "cat": "tabby kitten panther tiger",
        "bird": "sparrow robin crow eagle",
        "horse": "pony mare stallion foal",
        "fish": "salmon trout herring shark",
        "person": "artist scientist athlete official worker relative",
        "artist": "painter singer dancer poet actor",
        "scientist": "chemist biologist physicist geologist",
        "athlete": "runner swimmer boxer skier",
        "official": "mayor judge senator sheriff",
        "worker": "doctor nurse lawyer plumber farmer",
        "relative": "uncle cousin nephew sister",
        "object": "vehicle tool instrument fruit garment dish book vessel",
        "vehicle": "car truck canoe bicycle",
        "tool": "hammer saw drill wrench",
        "instrument": "guitar piano violin flute",
        "fruit": "apple banana cherry peach",
        "garment": "coat shirt hat scarf",
        "dish": "soup stew salad pie",
        "book": "novel atlas diary manual",
        "vessel": "basket bottle bucket jar",
    },
    "verb": {
        "get": "buy find borrow inherit",
        "move": "push drag lift",
        "damage": "break scratch burn",
        "assist": "rescue feed cure",
        "bother": "tease frighten insult",
        "notice": "spot watch inspect",
        "travel": "walk swim run march",
        "rest": "sleep doze",
    },
    "place": {
        "outdoors": "park garden forest field valley harbour",
        "indoors": "kitchen library office attic cellar museum",
    },
    "time": {"on the weekend": "saturday sunday", "on a weekday": "monday tuesday wednesday thursday friday"},
}
"""Hyponyms by hypernym. Sibling nouns exclude each other; sibling verbs say nothing about each other."""

_PLURALS = {"person": "people", "fish": "fish", "salmon": "salmon", "trout": "trout"}

_VERB_FORMS = {
    "on things": "get got, buy bought, find found, borrow borrowed, inherit inherited, move moved, push pushed, "
    "drag dragged, lift lifted, damage damaged, break broke broken, scratch scratched, burn burned, sell sold, "
    "lose lost, repair repaired, hide hid hidden, reveal revealed, accept accepted, reject rejected",
    "on living": "assist assisted, rescue rescued, feed fed, cure cured, bother bothered, tease teased, "
    "frighten frightened, insult insulted, chase chased, follow followed, avoid avoided, obey obeyed, defy defied",
    "on any": "notice noticed, spot spotted, watch watched, inspect inspected, admire admired, despise despised, "
    "remember remembered, forget forgot forgotten, protect protected, attack attacked",
    "intransitive": "travel travelled, walk walked, swim swam swum, run ran run, march marched, rest rested, "
    "sleep slept, doze dozed, shout shouted, whisper whispered, laugh laughed, weep wept, arrive arrived, leave left",
    "synonyms": "purchase purchased, discover discovered, wreck wrecked, fix fixed, conceal concealed, "
    "refuse refused, save saved, heal healed, help helped, scare scared, pursue pursued, examine examined, "
    "recall recalled, adore adored, detest detested, guard guarded, assault assaulted, obtain obtained, cry cried, "
    "depart departed",
}
"""Base form, past and, where it differs, participle of verbs, by the objects they take, and of further synonyms."""

_SYNONYMS = {
    "noun": "doctor physician, lawyer attorney, car automobile, coat jacket, object thing, vessel container, "
    "garment costume, person human, animal creature, sheriff constable, bicycle bike, stew casserole, foal colt, "
    "singer vocalist, boxer fighter, farmer grower, diary journal",
    "verb": "buy purchase, find discover, break wreck, repair fix, hide conceal, reject refuse, rescue save, "
    "cure heal, assist help, frighten scare, chase pursue, inspect examine, remember recall, admire adore, "
    "despise detest, protect guard, attack assault, get obtain, weep cry, leave depart",
    "adjective": "large big, small little, quiet silent, noisy loud, rich wealthy, dirty filthy, thin slim",
}
_OPPOSITES = {
    "verb": "buy sell, find lose, repair damage, hide reveal, accept reject, follow avoid, obey defy, admire despise, "
    "remember forget, protect attack, shout whisper, laugh weep, arrive leave",
    "adjective": "large small, old young, tall short, quiet noisy, rich poor, heavy light, wet dry, clean dirty, "
    "thin thick, red blue green yellow black white",
}
"""Members of one group exclude each other."""

_LISTS = {
    "on living": "large small old young tall short quiet noisy rich poor thin",
    "on things": "large small old heavy light wet dry clean dirty thick red blue green yellow black white",
    "aspect": "plot script story ending opening dialogue acting cast hero villain music score camera editing pacing "
    "humour romance direction scenery soundtrack finale sequel chorus album concert performance poster melody novel "
    "chapter service menu dessert waiter room view staff breakfast",
    "stronger": "very really truly utterly incredibly remarkably deeply absolutely",
    "weaker": "slightly somewhat rather fairly mildly vaguely faintly",
}
"""Adjectives of living beings and of things, aspects that opinions are about, and words of degree."""

_OPINIONS: dict[str, dict[int, str]] = {
    "adjective": {
        3: "superb brilliant magnificent stunning glorious wonderful marvellous exquisite flawless thrilling "
        "triumphant dazzling sublime phenomenal masterful breathtaking",
        2: "good charming clever delightful engaging funny moving witty elegant fresh lively graceful touching "
        "inventive warm sharp vivid rewarding",
        1: "decent pleasant nice solid competent likeable neat agreeable watchable cute passable sensible tidy capable",
        -1: "bland uneven slow plain predictable thin flat forgettable odd stale awkward routine muddled loose",
        -2: "bad dull boring clumsy tedious silly lifeless annoying shallow tiresome messy dreary weak pointless "
        "stupid hollow cold lazy",
        -3: "awful terrible dreadful horrible atrocious abysmal disastrous unbearable appalling wretched hideous "
        "painful insulting miserable revolting horrendous",
    },
    "effect": {2: "delighted amused impressed charmed pleased", -2: "bored annoyed irritated offended disappointed"},
    "noun": {
        2: "charm wit warmth energy beauty grace skill passion heart magic",
        -2: "cliches boredom mistakes noise nonsense gloom clutter malice flaws excess",
    },
    "stance": {
        3: "loved adored treasured",
        2: "enjoyed liked admired appreciated",
        -2: "disliked resented regretted endured",
        -3: "hated loathed despised",
    },
}
"""Words of opinion by strength: an effect is what an aspect did to a viewer, a stance what a viewer did to it."""


def _groups(text: str) -> list[list[str]]:
    return [group.split() for group in text.split(",")]


def _others(text: str) -> dict[str, list[str]]:
    """Map each word to the other members of its group."""
    return {word: [other for other in group if other != word] for group in _groups(text) for word in group}


LISTS = {kind: text.split() for kind, text in _LISTS.items()}
OPINIONS = {
    kind: {word: value for value, words in table.items() for word in words.split()} for kind, table in _OPINIONS.items()
}
SYNONYMS = {kind: _others(text) for kind, text in _SYNONYMS.items()}
OPPOSITES = {kind: _others(text) for kind, text in _OPPOSITES.items()}
_CANONICAL = {kind: {word: group[0] for group in _groups(text) for word in group} for kind, text in _SYNONYMS.items()}
CHILDREN = {kind: {parent: text.split() for parent, text in table.items()} for kind, table in _TAXONOMIES.items()}
PARENT = {kind: {word: parent for parent in table for word in table[parent]} for kind, table in CHILDREN.items()}
HYPERNYMS = {kind: {word: [parent] for word, parent in table.items()} for kind, table in PARENT.items()}
SIBLINGS = {
    kind: {word: [other for other in CHILDREN[kind][parent] if other != word] for word, parent in table.items()}
    for kind, table in PARENT.items()
}

_FORMS = {objects: _groups(text) for objects, text in _VERB_FORMS.items()}
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
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


def indefinite(text: str) -> str:
    """Put `a` or `an` before a text, by its first letter."""
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


_LEAVES = PARENT["noun"].keys() - CHILDREN["noun"].keys()
_THINNED = (_LEAVES, PAST, OPINIONS["adjective"], OPINIONS["effect"], OPINIONS["noun"])
RARE = frozenset(word for words in _THINNED for word in sorted(words)[::3])
"""Words that training rows seldom use and held-out rows use as any other: only pretraining teaches them."""


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
