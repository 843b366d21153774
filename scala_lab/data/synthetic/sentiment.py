"""Opinions whose value is computed from their parts: the sentences of mini-sst2.

A word of opinion is worth -3 .. 3. Degree words scale it, negations flip and weaken it, conjunctions add, and a
contrast (`although A , B`, `A but B`, `B , though A`) leaves only the clause that decides. The sign of the whole is
the label, so a reader must know the words, their strength and the structure.
"""

from __future__ import annotations

from scala_lab.data.synthetic import lexicon
from scala_lab.data.synthetic.words import Rng

STRONGER, WEAKER, NEGATION = 1.5, 0.5, -0.7
MIN_VALUE = 0.6
"""Sentences whose absolute value is at most this are not used."""
MAX_WORDS = 44

Opinion = tuple[str, float]
"""A text and its value."""


def _values(table: dict[int, str]) -> dict[str, int]:
    return {word: value for value, words in table.items() for word in words.split()}


_WORD_VALUE = _values(lexicon.OPINIONS) | _values(lexicon.EFFECT_VERBS) | _values(lexicon.OPINION_NOUNS)
_ADJECTIVES, _EFFECTS, _NOUNS = (
    list(_values(table)) for table in (lexicon.OPINIONS, lexicon.EFFECT_VERBS, lexicon.OPINION_NOUNS)
)
_BY_SIGN = {sign: [word for word in _ADJECTIVES if (_WORD_VALUE[word] > 0) is sign] for sign in (True, False)}
_STANCES = list(_values(lexicon.OPINION_VERBS).items())
_ASPECTS, _STRONGER, _WEAKER = lexicon.ASPECTS.split(), lexicon.INTENSIFIERS.split(), lexicon.DOWNTONERS.split()

_DESCRIPTION_FRAMES = ("the {} was {}", "the {} was {}", "i found the {} {}", "the {} seemed {}")
_NEGATED_FRAMES = (
    "nobody could call the {} {}",
    "the {} was anything but {}",
    "the {} failed to be {}",
    "i never found the {} {}",
)
_NOUN_FRAMES = (
    ("the {} was full of {}", 1.0),
    ("the {} had {}", 1.0),
    ("the {} lacked {}", -1.0),
    ("the {} was free of {}", -1.0),
)
_ATTITUDE_FRAMES = (
    ("i doubt that {}", NEGATION),
    ("it is not true that {}", -1.0),
    ("if only {}", NEGATION),
    ("it is clear that {}", 1.0),
    ("i am sure that {}", STRONGER),
    ("it is false to say that {}", -1.0),
)
_SECOND_DECIDES = ("although {} , {}", "{} , but {}", "while {} , {}", "granted , {} , yet {}")
_FIRST_DECIDES = ("{} , though {}", "{} even if {}", "{} , despite the fact that {}")


def opinion(rng: Rng, depths: tuple[int, ...], positive: bool) -> str:
    """Draw a sentence of this sign whose value is clearly not zero, of one of the given depths."""
    while True:
        text, value = compose(rng, rng.choice(depths))
        if (value > MIN_VALUE if positive else value < -MIN_VALUE) and text.count(" ") < MAX_WORDS:
            return f"{text} ."


def agreement(rng: Rng) -> str:
    """Draw a sentence of opinion words of the same sign, so that text shows polarity by company, as reviews do."""
    stance, value = rng.choice(_STANCES)
    words = [rng.choice(_BY_SIGN[value > 0]) for _ in range(3)]
    if rng.bernoulli(0.6):
        return f"the {rng.choice(_ASPECTS)} was {words[0]} , {words[1]} and {words[2]} ."
    return f"i {stance} the {rng.choice(_ASPECTS)} because it was {words[0]} and {words[1]} ."


def compose(rng: Rng, depth: int) -> Opinion:
    """Combine clauses by at most `depth` levels of structure."""
    if depth <= 0:
        return clause(rng)
    u = rng.random()
    text, value = compose(rng, depth - 1)
    if u < 0.22:
        frame, factor = rng.choice(_ATTITUDE_FRAMES)
        return frame.format(text), value * factor
    other, other_value = compose(rng, rng.choice((0, depth - 1)))
    if u < 0.52:
        return f"{text} and {other}", value + other_value
    if u < 0.78:
        return rng.choice(_SECOND_DECIDES).format(text, other), other_value
    return rng.choice(_FIRST_DECIDES).format(text, other), value


def clause(rng: Rng) -> Opinion:
    """Draw a judgement on one aspect."""
    aspect = rng.choice(_ASPECTS)
    u = rng.random()
    if u < 0.5:
        text, value = _description(rng)
        return rng.choice(_DESCRIPTION_FRAMES).format(aspect, text), value
    if u < 0.62:
        text, value = _description(rng, modified=False)
        return rng.choice(_NEGATED_FRAMES).format(aspect, text), value * NEGATION
    if u < 0.74:
        word = rng.choice(_EFFECTS)
        if rng.bernoulli(0.3):
            return f"the {aspect} never {word} me", _WORD_VALUE[word] * NEGATION
        return f"the {aspect} {word} me", float(_WORD_VALUE[word])
    if u < 0.88:
        word = rng.choice(_NOUNS)
        frame, factor = rng.choice(_NOUN_FRAMES)
        return frame.format(aspect, word), _WORD_VALUE[word] * factor
    word, stance = rng.choice(_STANCES)
    return f"i {word} the {aspect}", float(stance)


def _description(rng: Rng, modified: bool = True) -> Opinion:
    """Draw `slightly dull`, and if `modified` also `not very good`, `clever and warm`, `odd but charming`."""
    word = rng.choice(_ADJECTIVES)
    text, value = word, float(_WORD_VALUE[word])
    if rng.bernoulli(0.45):
        degrees, factor = (_STRONGER, STRONGER) if rng.bernoulli(0.5) else (_WEAKER, WEAKER)
        text, value = f"{rng.choice(degrees)} {text}", value * factor
    u = rng.random() if modified else 1.0
    if u < 0.2:
        text, value = f"{rng.choice(('not', 'hardly', 'never', 'not at all'))} {text}", value * NEGATION
    elif u < 0.3:
        other = rng.choice(_ADJECTIVES)
        text, value = f"{text} and {other}", value + _WORD_VALUE[other]
    elif u < 0.4:
        other = rng.choice(_ADJECTIVES)
        text, value = f"{text} but {other}", float(_WORD_VALUE[other])
    return text, value
