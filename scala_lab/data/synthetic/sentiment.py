"""Opinions with a value that is computed from their parts: the sentences of mini-sst2.

A word of opinion is worth -3 .. 3. Degree words scale it, negations flip and weaken it, conjunctions add, and a
contrast (`although A , B`, `A but B`, `B , though A`) leaves only the clause that decides. The sign of the whole is
the label, so a reader must know the words, their strength and the structure.
"""

from __future__ import annotations

from typing import NamedTuple

from scala_lab.data.synthetic import lexicon
from scala_lab.data.synthetic.words import Draw

STRONGER, WEAKER, NEGATION = 1.5, 0.5, -0.7
CLEAR = 0.6
"""Sentences worth less than this, either way, are left out."""
LONGEST = 44
"""Words in a sentence, at most."""


class Opinion(NamedTuple):
    """A text and what it is worth."""

    text: str
    value: float


def _valued(table: dict[int, str]) -> list[tuple[str, int]]:
    return [(word, value) for value, words in table.items() for word in words.split()]


_WORD_VALUE = (
    dict(_valued(lexicon.OPINIONS)) | dict(_valued(lexicon.EFFECT_VERBS)) | dict(_valued(lexicon.OPINION_NOUNS))
)
_ADJECTIVES = [word for words in lexicon.OPINIONS.values() for word in words.split()]
_BY_SIGN = {sign: [word for word in _ADJECTIVES if (_WORD_VALUE[word] > 0) is sign] for sign in (True, False)}
_EFFECTS = [word for words in lexicon.EFFECT_VERBS.values() for word in words.split()]
_NOUNS = [word for words in lexicon.OPINION_NOUNS.values() for word in words.split()]
_STANCES = _valued(lexicon.OPINION_VERBS)
_ASPECTS = lexicon.ASPECTS.split()
_INTENSIFIERS = lexicon.INTENSIFIERS.split()
_DOWNTONERS = lexicon.DOWNTONERS.split()


def _description(draw: Draw, turns: bool = True) -> Opinion:
    """`slightly dull`, `not very good`, `clever and warm`, `odd but charming`; without `turns` only the first."""
    word = draw.pick(_ADJECTIVES)
    text, value = word, float(_WORD_VALUE[word])
    if draw.one_in(0.45):
        if draw.one_in(0.5):
            text, value = f"{draw.pick(_INTENSIFIERS)} {text}", value * STRONGER
        else:
            text, value = f"{draw.pick(_DOWNTONERS)} {text}", value * WEAKER
    turn = draw.chance() if turns else 1.0
    if turn < 0.2:
        text, value = f"{draw.pick(('not', 'hardly', 'never', 'not at all'))} {text}", value * NEGATION
    elif turn < 0.3:
        other = draw.pick(_ADJECTIVES)
        text, value = f"{text} and {other}", value + _WORD_VALUE[other]
    elif turn < 0.4:
        other = draw.pick(_ADJECTIVES)
        text, value = f"{text} but {other}", float(_WORD_VALUE[other])
    return Opinion(text, value)


def clause(draw: Draw) -> Opinion:
    """One judgement on one aspect."""
    aspect = draw.pick(_ASPECTS)
    turn = draw.chance()
    if turn < 0.5:
        text, value = _description(draw)
        frame = draw.pick(("the {} was {}", "the {} was {}", "i found the {} {}", "the {} seemed {}"))
        return Opinion(frame.format(aspect, text), value)
    if turn < 0.62:
        text, value = _description(draw, turns=False)
        frame = draw.pick(
            (
                "nobody could call the {} {}",
                "the {} was anything but {}",
                "the {} failed to be {}",
                "i never found the {} {}",
            )
        )
        return Opinion(frame.format(aspect, text), value * NEGATION)
    if turn < 0.74:
        word = draw.pick(_EFFECTS)
        if draw.one_in(0.3):
            return Opinion(f"the {aspect} never {word} me", _WORD_VALUE[word] * NEGATION)
        return Opinion(f"the {aspect} {word} me", float(_WORD_VALUE[word]))
    if turn < 0.88:
        word = draw.pick(_NOUNS)
        frame, factor = draw.pick(
            (
                ("the {} was full of {}", 1.0),
                ("the {} had {}", 1.0),
                ("the {} lacked {}", -1.0),
                ("the {} was free of {}", -1.0),
            )
        )
        return Opinion(frame.format(aspect, word), _WORD_VALUE[word] * factor)
    word, stance = draw.pick(_STANCES)
    return Opinion(f"i {word} the {aspect}", float(stance))


def compose(draw: Draw, depth: int) -> Opinion:
    """Clauses put together, `depth` levels of structure above them at most."""
    if depth <= 0:
        return clause(draw)
    turn = draw.chance()
    if turn < 0.22:
        inner = compose(draw, depth - 1)
        frame, factor = draw.pick(
            (
                ("i doubt that {}", NEGATION),
                ("it is not true that {}", -1.0),
                ("if only {}", NEGATION),
                ("it is clear that {}", 1.0),
                ("i am sure that {}", STRONGER),
                ("it is false to say that {}", -1.0),
            )
        )
        return Opinion(frame.format(inner.text), inner.value * factor)
    first, second = compose(draw, depth - 1), compose(draw, draw.pick((0, depth - 1)))
    if turn < 0.52:
        return Opinion(f"{first.text} and {second.text}", first.value + second.value)
    if turn < 0.78:
        frame = draw.pick(("although {} , {}", "{} , but {}", "while {} , {}", "granted , {} , yet {}"))
        return Opinion(frame.format(first.text, second.text), second.value)
    frame = draw.pick(("{} , though {}", "{} even if {}", "{} , despite the fact that {}"))
    return Opinion(frame.format(first.text, second.text), first.value)


def agreement(draw: Draw) -> str:
    """Words of one mind side by side: text that shows polarity by company, as reviews do."""
    stance, value = draw.pick(_STANCES)
    words = [draw.pick(_BY_SIGN[value > 0]) for _ in range(3)]
    if draw.one_in(0.6):
        return f"the {draw.pick(_ASPECTS)} was {words[0]} , {words[1]} and {words[2]} ."
    return f"i {stance} the {draw.pick(_ASPECTS)} because it was {words[0]} and {words[1]} ."


def opinion(draw: Draw, depths: tuple[int, ...], positive: bool) -> Opinion:
    """A sentence of the wanted sign whose value is clear of zero; depth is one of `depths`."""
    while True:
        found = compose(draw, draw.pick(depths))
        if (found.value > CLEAR if positive else found.value < -CLEAR) and found.text.count(" ") < LONGEST:
            return Opinion(f"{found.text} .", found.value)
