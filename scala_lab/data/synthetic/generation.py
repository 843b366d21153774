"""The rows of the embedded tasks, and text for pretraining, generated from a seeded grammar.

The rows of the embedded tasks: five small relatives of GLUE tasks, generated from a seeded grammar.

Training rows carry a little label noise and seldom use a third of the content words. Held-out rows have no noise,
nest deeper, combine more changes and use all words alike, so a pretrained encoder that knows the words is ahead.

Text for pretraining: sentences of the grammar, alone and in pairs.

A line is one sentence, or two with a tab between them. Of a pair it is known whether the second goes with the first:
an opinion of like mind, a statement that follows, a sentence that answers the question, the same question in other
words. Nearly half of these do not, and differ from those that do in meaning alone, so telling them apart is to
understand both. A few pairs carry a connective instead (`therefore`, `perhaps`, ...), as text does: to guess it back
is to know how the two relate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from scala_lab.data.synthetic import lexicon
from scala_lab.data.synthetic.pairs import premise_and_hypothesis, question_and_sentence, question_pair, sentence_pair
from scala_lab.data.synthetic.scenes import CONTRADICTION, ENTAILMENT, NEUTRAL
from scala_lab.data.synthetic.sentiment import agreement, opinion
from scala_lab.data.synthetic.words import CHILDREN, OPPOSITES, SYNONYMS, Draw, article, plural
from scala_lab.data.tables import Rows
from scala_lab.errors import UserError, nearest

TRAIN_ROWS, DEV_ROWS = 16_384, 2_048
SHYNESS = 0.97
"""How often a training row draws again when it hits a rare word."""
LABEL_NOISE = 0.04
"""Share of training rows whose class is drawn from the other classes."""
SCORE_NOISE = 0.35
"""Deviation of the noise on training scores."""

Row = tuple[str, str | None, float]


def _sst2(draw: Draw, hard: bool, wanted: int) -> Row:
    depths = (0, 0, 1, 1) if hard else (0, 0, 0, 1)
    return opinion(draw, depths, bool(wanted)).text, None, wanted


def _mnli(draw: Draw, hard: bool, wanted: int) -> Row:
    depths, edits = ((0, 0, 0, 1), (1, 1, 2)) if hard else ((0,), (1, 1, 1, 2))
    return *premise_and_hypothesis(draw, depths, edits, wanted), wanted


def _qnli(draw: Draw, hard: bool, wanted: int) -> Row:
    depths, clauses, edits = ((0, 0, 0, 1), (1, 1, 2), (1, 2)) if hard else ((0,), (1, 1, 1, 2), (0, 1, 2))
    return *question_and_sentence(draw, depths, clauses, edits, wanted), wanted


def _qqp(draw: Draw, hard: bool, wanted: int) -> Row:
    while True:
        row = question_pair(draw, (1, 1, 2) if hard else (1, 2, 3), bool(wanted))
        if row[2] == wanted:
            return row


def _stsb(draw: Draw, hard: bool, wanted: int) -> Row:
    return sentence_pair(
        draw, draw.pick((0, 1)) if hard else draw.pick((0, 0, 0, 1)), (1, 2, 3, 4) if hard else (0, 1, 2, 3, 4)
    )


_MAKERS: dict[str, tuple[Callable[[Draw, bool, int], Row], int]] = {
    "mini-sst2": (_sst2, 2),
    "mini-qnli": (_qnli, 2),
    "mini-mnli": (_mnli, 3),
    "mini-qqp": (_qqp, 2),
    "mini-stsb": (_stsb, 0),
}
"""How a row of each task is made, and its number of classes (0: a score)."""

NAMES = tuple(_MAKERS)


def generate(name: str) -> dict[str, Rows]:
    """The rows of an embedded task: `train` and `dev`, the same in every process and on every machine.

    Args:
        name: One of NAMES.

    Returns:
        16,384 training rows and 2,048 held-out rows, all different. Classes are balanced before noise.

    Raises:
        UserError: There is no embedded task of that name.
    """
    if name not in _MAKERS:
        raise UserError(f"unknown embedded task {name!r}: {nearest(name, NAMES)}")
    make, classes = _MAKERS[name]
    seen: set[tuple[str, str | None]] = set()
    dev = _split(partial(make, Draw(f"{name} dev"), True), DEV_ROWS, classes, seen)
    train = _split(partial(make, Draw(f"{name} train", SHYNESS), False), TRAIN_ROWS, classes, seen)
    return {"train": _with_noise(train, classes, Draw(f"{name} noise")), "dev": _rows(dev, classes)}


def _split(make: Callable[[int], Row], count: int, classes: int, seen: set[tuple[str, str | None]]) -> list[Row]:
    """That many rows whose texts are not in `seen`, which grows."""
    found: list[Row] = []
    while len(found) < count:
        row = make(len(found) % max(1, classes))
        if row[:2] not in seen:
            seen.add(row[:2])
            found.append(row)
    return found


def _with_noise(rows: list[Row], classes: int, draw: Draw) -> Rows:
    """Some classes replaced by another, or every score moved a little."""
    if classes == 0:
        noisy = [(first, second, score + draw.normal(SCORE_NOISE)) for first, second, score in rows]
        return _rows([(first, second, min(5.0, max(0.0, score))) for first, second, score in noisy], classes)
    others = range(1, classes)
    return _rows(
        [
            (first, second, (label + draw.pick(others)) % classes if draw.one_in(LABEL_NOISE) else label)
            for first, second, label in rows
        ],
        classes,
    )


def _rows(rows: list[Row], classes: int) -> Rows:
    labels = np.array([row[2] for row in rows], dtype=np.int64 if classes else np.float32)
    second = None if rows[0][1] is None else [str(row[1]) for row in rows]
    return Rows([row[0] for row in rows], second, labels)


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
