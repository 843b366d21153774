"""The rows of the embedded tasks, five small relatives of GLUE tasks, and text for pretraining, from a seeded grammar.

The sentences of mini-sst2 are opinions whose value is computed from their parts. A word of opinion is worth -3 .. 3.
Degree words scale it, negations flip and weaken it, conjunctions add, and a contrast (`although A , B`, `A but B`,
`B , though A`) leaves only the clause that decides. The sign of the whole is the label, so a reader must know the
words, their strength and the structure.

Training rows carry a little label noise and seldom use a third of the content words. Held-out rows have no noise,
nest deeper, combine more changes and use all words alike, so a pretrained encoder that knows the words is ahead.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from scala_lab.data.synthetic import grammar, pairs
from scala_lab.data.synthetic.grammar import CONTRADICTION, ENTAILMENT, FRAMES, LISTS, NEUTRAL, OPINIONS, Rng
from scala_lab.data.tasks import Rows

STRONGER, WEAKER, NEGATION = 1.5, 0.5, -0.7
MIN_VALUE = 0.6  # sentences whose absolute value is at most this are not used
MAX_WORDS = 44
Opinion = tuple[str, float]  # a text and its value

_WORD_VALUE = OPINIONS["adjective"] | OPINIONS["effect"] | OPINIONS["noun"]
_ADJECTIVES, _EFFECTS, _NOUNS = (list(OPINIONS[kind]) for kind in ("adjective", "effect", "noun"))
_BY_SIGN = {sign: [word for word in _ADJECTIVES if (_WORD_VALUE[word] > 0) is sign] for sign in (True, False)}
_STANCES = list(OPINIONS["stance"].items())
_ASPECTS = LISTS["aspect"]


def opinion(rng: Rng, depths: pairs.Numbers, positive: bool) -> str:
    """Draw a sentence of this sign whose value is clearly not zero, of one of the given depths."""
    while True:
        text, value = compose(rng, rng.choice(depths))
        if (value > MIN_VALUE if positive else value < -MIN_VALUE) and text.count(" ") < MAX_WORDS:
            return f"{text} ."


def compose(rng: Rng, depth: int) -> Opinion:
    """Combine clauses by at most `depth` levels of structure."""
    if depth <= 0:
        return clause(rng)
    u = rng.random()
    text, value = compose(rng, depth - 1)
    if u < 0.22:
        frame, factor = rng.choice(FRAMES["attitude"])
        return frame.format(text), value * factor
    other, other_value = compose(rng, rng.choice((0, depth - 1)))
    if u < 0.52:
        return f"{text} and {other}", value + other_value
    if u < 0.78:
        return rng.choice(FRAMES["second_decides"]).format(text, other), other_value
    return rng.choice(FRAMES["first_decides"]).format(text, other), value


def clause(rng: Rng) -> Opinion:
    """Draw a judgement on one aspect."""
    aspect = rng.choice(_ASPECTS)
    u = rng.random()
    if u < 0.5:
        text, value = _description(rng)
        return rng.choice(FRAMES["description"]).format(aspect, text), value
    if u < 0.62:
        text, value = _description(rng, modified=False)
        return rng.choice(FRAMES["negated"]).format(aspect, text), value * NEGATION
    if u < 0.74:
        word = rng.choice(_EFFECTS)
        if rng.bernoulli(0.3):
            return f"the {aspect} never {word} me", _WORD_VALUE[word] * NEGATION
        return f"the {aspect} {word} me", float(_WORD_VALUE[word])
    if u < 0.88:
        word = rng.choice(_NOUNS)
        frame, factor = rng.choice(FRAMES["noun"])
        return frame.format(aspect, word), _WORD_VALUE[word] * factor
    word, stance = rng.choice(_STANCES)
    return f"i {word} the {aspect}", float(stance)


def _description(rng: Rng, modified: bool = True) -> Opinion:
    """Draw `slightly dull`, and if `modified` also `not very good`, `clever and warm`, `odd but charming`."""
    word = rng.choice(_ADJECTIVES)
    text, value = word, float(_WORD_VALUE[word])
    if rng.bernoulli(0.45):
        degree, factor = ("stronger", STRONGER) if rng.bernoulli(0.5) else ("weaker", WEAKER)
        text, value = f"{rng.choice(LISTS[degree])} {text}", value * factor
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


TRAIN_ROWS, DEV_ROWS = 16_384, 2_048
AVOID_RARE = 0.97  # probability that a training row draws again when it draws a rare word
LABEL_NOISE = 0.04  # share of training rows whose class is drawn from the other classes
SCORE_NOISE = 0.35  # standard deviation of the noise on training scores

Row = tuple[str, str | None, float]
Labels = dict[tuple[str, str | None], float]  # the label of each row by its texts, in the order of the rows


def _opinion_row(rng: Rng, depths: pairs.Numbers, label: int) -> Row:
    return opinion(rng, depths, label == 1), None, label


def _similarity_row(rng: Rng, depths: pairs.Numbers, edits: pairs.Numbers, label: int) -> Row:
    return pairs.sentence_pair(rng, rng.choice(depths), edits)


EMBEDDED: dict[str, tuple[int, Callable[..., Row], tuple[pairs.Numbers, ...], tuple[pairs.Numbers, ...]]] = {
    "mini-sst2": (2, _opinion_row, ((0, 0, 0, 1),), ((0, 0, 1, 1),)),
    "mini-qnli": (2, pairs.question_and_sentence, ((0,), (1, 1, 1, 2), (0, 1, 2)), ((0, 0, 0, 1), (1, 1, 2), (1, 2))),
    "mini-mnli": (3, pairs.premise_and_hypothesis, ((0,), (1, 1, 1, 2)), ((0, 0, 0, 1), (1, 1, 2))),
    "mini-qqp": (2, pairs.question_pair, ((1, 2, 3),), ((1, 1, 2),)),
    "mini-stsb": (0, _similarity_row, ((0, 0, 0, 1), (0, 1, 2, 3, 4)), ((0, 1), (1, 2, 3, 4))),
}
"""By task: the number of classes (0: a score), the function that draws a row, and the numbers from which it draws
depths, clauses and edits for `train` and, harder, for `dev`."""


def generate(name: str) -> dict[str, Rows]:
    """Generate the `train` and `dev` rows of an embedded task, all different, with classes balanced before noise."""
    classes, draw_row, easy, hard = EMBEDDED[name]
    dev = _draw_rows(partial(draw_row, Rng(f"{name} dev"), *hard), DEV_ROWS, classes, {})
    train = _draw_rows(partial(draw_row, Rng(f"{name} train", AVOID_RARE), *easy), TRAIN_ROWS, classes, dev)
    noise = Rng(f"{name} noise")

    def noisy(label: float) -> float:
        if classes == 0:
            return min(5.0, max(0.0, label + noise.gauss(0.0, SCORE_NOISE)))
        return (label + noise.choice(range(1, classes))) % classes if noise.bernoulli(LABEL_NOISE) else label

    train = {texts: noisy(label) for texts, label in train.items()}
    return {"train": _as_rows(train, classes), "dev": _as_rows(dev, classes)}


def _draw_rows(draw_row: Callable[[int], Row], count: int, classes: int, exclude: Labels) -> Labels:
    """Draw rows with different texts, none of them in `exclude`, with labels in turn."""
    rows: Labels = {}
    while len(rows) < count:
        wanted = len(rows) % max(1, classes)
        first, second, label = draw_row(wanted)
        if (first, second) not in exclude and (label == wanted or not classes):
            rows.setdefault((first, second), label)
    return rows


def _as_rows(rows: Labels, classes: int) -> Rows:
    first, second = zip(*rows, strict=True)
    labels = np.array(list(rows.values()), dtype=np.int64 if classes else np.float32)
    return Rows(list(first), None if second[0] is None else list(second), labels)


class Line(NamedTuple):
    """A line of pretraining text: a sentence, or two with a tab between them.

    Most pairs are labelled by whether the second sentence fits the first: an opinion of the same sign, a statement that
    follows, an answer, the same question in other words. Nearly half do not, and differ from those that do in meaning
    alone. The other pairs carry a connective instead (`therefore`, `perhaps`, ...), which masking makes a prediction.
    """

    text: str
    fits: bool | None = None


CONNECTED = 0.25  # probability that a pair carries a connective


def lines(count: int, seed: int) -> list[Line]:
    """Generate lines of pretraining text, a function of the seed alone."""
    rng = Rng(f"pretraining text {seed}")
    return [rng.choice(_LINE_KINDS)(rng) for _ in range(count)]


def _pair(rng: Rng, first: str, second: str, fits: bool, connective: str) -> Line:
    if rng.bernoulli(CONNECTED):
        return Line(f"{first}\t{connective} , {second}")
    return Line(f"{first}\t{second}", fits)


def _opinions(rng: Rng) -> Line:
    positive, fits = rng.bernoulli(0.5), rng.bernoulli(0.5)
    first = opinion(rng, (0, 0, 0, 1, 1), positive)
    second = opinion(rng, (0,), positive == fits)
    pair = (first, second) if rng.bernoulli(0.5) else (second, first)
    return _pair(rng, *pair, fits, "indeed" if fits else "however")


def _agreement(rng: Rng) -> Line:
    """Draw a sentence of opinion words of the same sign, so that text shows polarity by company, as reviews do."""
    stance, value = rng.choice(_STANCES)
    words = [rng.choice(_BY_SIGN[value > 0]) for _ in range(3)]
    if rng.bernoulli(0.6):
        return Line(f"the {rng.choice(_ASPECTS)} was {words[0]} , {words[1]} and {words[2]} .")
    return Line(f"i {stance} the {rng.choice(_ASPECTS)} because it was {words[0]} and {words[1]} .")


def _consequence(rng: Rng) -> Line:
    label = rng.choice((ENTAILMENT, ENTAILMENT, NEUTRAL, CONTRADICTION))
    first, second, _ = pairs.premise_and_hypothesis(rng, (0, 0, 0, 1), (0, 1, 1, 2), label)
    connective = {ENTAILMENT: "therefore", NEUTRAL: "perhaps", CONTRADICTION: "impossible"}[label]
    return _pair(rng, first, second, label == ENTAILMENT, connective)


def _answer(rng: Rng) -> Line:
    first, second, label = pairs.question_and_sentence(rng, (0,), (1, 1, 2), (0, 1, 2), int(rng.bernoulli(0.5)))
    return _pair(rng, first, second, label == 0, ("listen", "besides")[label])


def _same_question(rng: Rng) -> Line:
    first, second, label = pairs.question_pair(rng, (1, 1, 2), int(rng.bernoulli(0.5)))
    return _pair(rng, first, second, label == 1, ("also", "again")[label])


def _similar(rng: Rng) -> Line:
    first, second, score = pairs.sentence_pair(rng, 0, (0, 1, 2, 3, 4))
    return Line(f"{first}\t{second}", score > 2.5)


def _lexical(rng: Rng) -> Line:
    """State how two words relate: `every dog is an animal .`."""
    parent, child = _entry(rng, grammar.CHILDREN["noun"])
    sibling = rng.choice(grammar.CHILDREN["noun"][parent])
    u = rng.random()
    if u < 0.3:
        return Line(f"every {child} is {grammar.indefinite(parent)} .")
    if u < 0.5:
        return Line(f"{grammar.plural(child)} and {grammar.plural(sibling)} are {grammar.plural(parent)} .")
    if u < 0.6 and child != sibling:
        return Line(f"no {child} is {grammar.indefinite(sibling)} .")
    u = rng.random()
    if u < 0.3:
        parent, child = _entry(rng, grammar.CHILDREN["verb"])
        return Line(f"to {child} is to {parent} .")
    if u < 0.5:
        kind = rng.choice(("verb", "adjective"))
        word, opposite = _entry(rng, grammar.OPPOSITES[kind])
        to = "to " if kind == "verb" else ""
        return Line(f"{to}{word} is not {to}{opposite} .")
    word, synonym = _entry(rng, grammar.SYNONYMS[rng.choice(("noun", "verb", "adjective"))])
    return Line(f"{word} means {synonym} .")


def _entry(rng: Rng, table: dict[str, list[str]]) -> tuple[str, str]:
    """Draw a word, and one of those that the table lists for it."""
    word = rng.choice(tuple(table))
    return word, rng.choice(table[word])


_LINE_KINDS: list[Callable[[Rng], Line]] = []
_LINE_KINDS += [_opinions] * 6 + [_agreement] * 2 + [_consequence] * 6
_LINE_KINDS += [_answer] * 4 + [_same_question] * 4 + [_similar] * 2 + [_lexical]
