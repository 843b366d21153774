"""The rows of the embedded tasks: five small relatives of GLUE tasks, generated from a seeded grammar.

Training rows carry a little label noise and seldom use a third of the content words. Held-out rows have no noise,
nest deeper, combine more changes and use all words alike, so a pretrained encoder that knows the words is ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from scala_lab.errors import UserError, nearest
from scala_lab.tasks.embedded.inference import premise_and_hypothesis, question_and_sentence
from scala_lab.tasks.embedded.likeness import question_pair, sentence_pair
from scala_lab.tasks.embedded.sentiment import opinion
from scala_lab.tasks.embedded.words import Draw
from scala_lab.tasks.rows import Rows

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
