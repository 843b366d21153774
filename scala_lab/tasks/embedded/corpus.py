"""Text for pretraining: sentences of the grammar, alone and in contexts that show how words go together.

A line is one sentence, or two with a tab between them: an opinion and a short one of like mind, a statement and
what follows from it, a question and a sentence that answers it, a question in other words, a word and its kind.
There are no labels in it.
"""

from __future__ import annotations

from collections.abc import Callable

from scala_lab.tasks.embedded import lexicon
from scala_lab.tasks.embedded.inference import premise_and_hypothesis, question_and_sentence
from scala_lab.tasks.embedded.likeness import question_pair, sentence_pair
from scala_lab.tasks.embedded.relations import ENTAILMENT
from scala_lab.tasks.embedded.sentiment import opinion
from scala_lab.tasks.embedded.words import CHILDREN, OPPOSITES, SYNONYMS, Draw, article, plural

LIKE_MIND = 0.85
"""How often the second opinion agrees with the first."""


def _opinions(draw: Draw) -> str:
    positive = draw.one_in(0.5)
    first = opinion(draw, (0, 0, 1, 1, 2), positive).text
    second = opinion(draw, (0,), positive == draw.one_in(LIKE_MIND)).text
    return f"{first}\t{second}" if draw.one_in(0.5) else f"{second}\t{first}"


def _consequence(draw: Draw) -> str:
    for _ in range(3):
        first, second, label = premise_and_hypothesis(draw, draw.pick((0, 0, 1)), (0, 1, 1, 2))
        if label == ENTAILMENT:
            break
    return f"{first}\t{second}"


def _answer(draw: Draw) -> str:
    for _ in range(3):
        question, sentence, label = question_and_sentence(draw, 0, (1, 1, 2), (0, 1, 2))
        if label == 0:
            break
    return f"{question}\t{sentence}"


def _same_question(draw: Draw) -> str:
    first, second, _ = question_pair(draw, (1,), draw.one_in(0.8))
    return f"{first}\t{second}"


def _similar(draw: Draw) -> str:
    first, second, _ = sentence_pair(draw, 0, (0, 1, 2))
    return f"{first}\t{second}"


def _kinds(draw: Draw) -> str:
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


_MIX: tuple[Callable[[Draw], str], ...] = (
    *(_opinions,) * 6,
    *(_consequence,) * 6,
    *(_answer,) * 3,
    *(_same_question,) * 2,
    _similar,
    _kinds,
)


def sentences(count: int, seed: int) -> list[str]:
    """That many lines of pretraining text; a tab parts the two sentences of a pair.

    Args:
        count: Number of lines.
        seed: Lines are a function of the seed alone; different seeds give different text.
    """
    draw = Draw(f"pretraining text {seed}")
    return [draw.pick(_MIX)(draw) for _ in range(count)]
