"""Text for pretraining: sentences of the grammar, alone and in pairs.

A line is one sentence, or two with a tab between them. Of a pair it is known whether the second goes with the first:
an opinion of like mind, a statement that follows, a sentence that answers the question, the same question in other
words. Nearly half of these do not, and differ from those that do in meaning alone, so telling them apart is to
understand both. A few pairs carry a connective instead (`therefore`, `perhaps`, ...), as text does: to guess it back
is to know how the two relate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scala_lab.tasks.embedded import lexicon
from scala_lab.tasks.embedded.inference import premise_and_hypothesis, question_and_sentence
from scala_lab.tasks.embedded.likeness import question_pair, sentence_pair
from scala_lab.tasks.embedded.relations import CONTRADICTION, ENTAILMENT, NEUTRAL
from scala_lab.tasks.embedded.sentiment import agreement, opinion
from scala_lab.tasks.embedded.words import CHILDREN, OPPOSITES, SYNONYMS, Draw, article, plural

CONNECTED = 0.25
"""How often a pair carries a connective."""


class Line(NamedTuple):
    """A text, and whether its second sentence goes with the first (None where that is not asked)."""

    text: str
    fits: bool | None = None


def _pair(draw: Draw, first: str, second: str, fits: bool, word: str) -> Line:
    """The pair with the question whether it fits, or with a word that says how the second stands to the first."""
    if draw.one_in(CONNECTED):
        return Line(f"{first}\t{word} , {second}")
    return Line(f"{first}\t{second}", fits)


def _opinions(draw: Draw) -> Line:
    positive, fits = draw.one_in(0.5), draw.one_in(0.5)
    first = opinion(draw, (0, 0, 0, 1, 1), positive).text
    second = opinion(draw, (0,), positive == fits).text
    pair = (first, second) if draw.one_in(0.5) else (second, first)
    return _pair(draw, *pair, fits, "indeed" if fits else "however")


def _consequence(draw: Draw) -> Line:
    label = draw.pick((ENTAILMENT, ENTAILMENT, NEUTRAL, CONTRADICTION))
    pair = premise_and_hypothesis(draw, (0, 0, 0, 1), (0, 1, 1, 2), label)
    word = {ENTAILMENT: "therefore", NEUTRAL: "perhaps", CONTRADICTION: "impossible"}[label]
    return _pair(draw, *pair, label == ENTAILMENT, word)


def _answer(draw: Draw) -> Line:
    label = int(draw.one_in(0.5))
    pair = question_and_sentence(draw, (0,), (1, 1, 2), (0, 1, 2), label)
    return _pair(draw, *pair, label == 0, ("listen", "besides")[label])


def _same_question(draw: Draw) -> Line:
    first, second, label = question_pair(draw, (1, 1, 2), draw.one_in(0.5))
    return _pair(draw, first, second, label == 1, ("also", "again")[int(label)])


def _agreement(draw: Draw) -> Line:
    return Line(agreement(draw))


def _similar(draw: Draw) -> Line:
    first, second, score = sentence_pair(draw, 0, (0, 1, 2, 3, 4))
    return Line(f"{first}\t{second}", score > 2.5)


def _kinds(draw: Draw) -> Line:
    return Line(_nominal_kinds(draw))


def _nominal_kinds(draw: Draw) -> str:
    parent = draw.pick(tuple(CHILDREN["noun"]))
    child, sibling = draw.pick(CHILDREN["noun"][parent]), draw.pick(CHILDREN["noun"][parent])
    turn = draw.chance()
    if turn < 0.3:
        return f"every {child} is {article(parent)} {parent} ."
    if turn < 0.5:
        return f"{plural(child)} and {plural(sibling)} are {plural(parent)} ."
    if turn < 0.6 and child != sibling:
        return f"no {child} is {article(sibling)} {sibling} ."
    return _verbal_kinds(draw)


def _verbal_kinds(draw: Draw) -> str:
    turn = draw.chance()
    if turn < 0.3:
        parent = draw.pick(tuple(lexicon.VERB_KINDS))
        return f"to {draw.pick(CHILDREN['verb'][parent])} is to {parent} ."
    if turn < 0.5:
        kind = draw.pick(("verb", "adjective"))
        word = draw.pick(tuple(OPPOSITES[kind]))
        to = "to " if kind == "verb" else ""
        return f"{to}{word} is not {to}{draw.pick(OPPOSITES[kind][word])} ."
    kind = draw.pick(("noun", "verb", "adjective"))
    word = draw.pick(tuple(SYNONYMS[kind]))
    return f"{word} means {draw.pick(SYNONYMS[kind][word])} ."


_MIX: tuple[Callable[[Draw], Line], ...] = (
    *(_opinions,) * 6,
    *(_agreement,) * 2,
    *(_consequence,) * 6,
    *(_answer,) * 4,
    *(_same_question,) * 4,
    *(_similar,) * 2,
    _kinds,
)


def lines(count: int, seed: int) -> list[Line]:
    """That many lines of pretraining text.

    Args:
        count: Number of lines.
        seed: Lines are a function of the seed alone; different seeds give different text.
    """
    draw = Draw(f"pretraining text {seed}")
    return [draw.pick(_MIX)(draw) for _ in range(count)]


def sentences(count: int, seed: int) -> list[str]:
    """The texts of `lines`."""
    return [line.text for line in lines(count, seed)]
