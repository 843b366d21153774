"""How much two texts mean the same: mini-qqp (the same question or not) and mini-stsb (a score)."""

from __future__ import annotations

from scala_lab.tasks.embedded.edits import edit, swap
from scala_lab.tasks.embedded.inference import draw_fact
from scala_lab.tasks.embedded.relations import AROUND, EQUAL, WITHIN
from scala_lab.tasks.embedded.scenes import Action, Phrase, Scene, relate_actions, relate_phrases, relate_words
from scala_lab.tasks.embedded.wording import ask, circumstances, say
from scala_lab.tasks.embedded.words import PARENT, Draw, article, leader

_CHANGES = (
    "hypernym",
    "hyponym",
    "sibling",
    "add adjective",
    "drop modifier",
    "opposite adjective",
    "wider verb",
    "sibling verb",
    "opposite verb",
    "circumstance",
)
_HOW_FRAMES = (
    "how can {0} {1} {2}{3} ?",
    "what is the best way for {0} to {1} {2}{3} ?",
    "how does {0} {1} {2}{3} ?",
)
_MAY_FRAMES = (
    "can {0} {1} {2}{3} ?",
    "is it possible for {0} to {1} {2}{3} ?",
    "is {0} able to {1} {2}{3} ?",
)
_WHY_FRAMES = (
    "why would {0} {1} {2}{3} ?",
    "for what reason would {0} {1} {2}{3} ?",
    "what would make {0} {1} {2}{3} ?",
)
_FRAMES = {"how": _HOW_FRAMES, "may": _MAY_FRAMES, "why": _WHY_FRAMES}


def _bare(phrase: Phrase) -> str:
    text = phrase.noun if phrase.adjective is None else f"{phrase.adjective} {phrase.noun}"
    return f"{article(text)} {text}"


def _word_question(draw: Draw, scene: Scene, asked: str) -> str:
    if asked not in _FRAMES:
        return ask(draw, scene, asked)
    action = scene.action
    what = "" if action.object is None else _bare(action.object)
    around = circumstances(draw, action)
    text = draw.pick(_FRAMES[asked]).format(_bare(scene.subject), action.verb, what, around)
    return text.replace("  ", " ")


def _open(scene: Scene, asked: str) -> Scene:
    """Without the slot that is asked for, so that it does not count as a difference."""
    action = scene.action._replace(negated=False)
    if asked == "where":
        action = action._replace(place=None)
    if asked == "when":
        action = action._replace(time=None)
    if asked == "what":
        action = action._replace(object=Phrase("object"))
    return scene._replace(action=action, subject=Phrase("person") if asked == "who" else scene.subject)


def question_pair(draw: Draw, edits: tuple[int, ...], duplicate: bool) -> tuple[str, str, int]:
    """Two questions; 1 when they ask the same in other words."""
    first = draw_fact(draw, 0)
    slots = ["who", "where", "when", "how", "may", "why"] + ["what"] * (first.action.object is not None)
    asked = draw.pick(slots)
    also = asked
    first = first._replace(action=first.action._replace(negated=False))
    second = edit(draw, first, ("synonym",), 3)
    if not duplicate:
        turn = draw.chance()
        if turn < 0.15:
            also = draw.pick(slots)
        elif turn < 0.3:
            second = swap(second)
        else:
            second = edit(draw, second, _CHANGES, draw.pick(edits))
    first, second = _open(first, asked), _open(second, also)
    same = (
        asked == also
        and relate_phrases(first.subject, second.subject) is EQUAL
        and relate_actions(first.action, second.action) is EQUAL
    )
    return _word_question(draw, first, asked), _word_question(draw, second, also), int(same)


def _near(kind: str, first: str | None, second: str | None) -> float:
    """1 for synonyms, less for a hypernym, a sibling, an opposite; 0 for strangers."""
    if first is None or second is None:
        return float(first is second)
    relation = relate_words(kind, first, second)
    if relation is EQUAL:
        return 1.0
    if relation in (WITHIN, AROUND):
        return 0.7
    parents = PARENT.get(kind, {})
    first, second = leader(kind, first), leader(kind, second)
    return 0.4 if parents.get(first, first) == parents.get(second, second) else 0.0


def _near_phrases(first: Phrase | None, second: Phrase | None) -> float:
    if first is None or second is None:
        return float(first is second)
    score = _near("noun", first.noun, second.noun)
    if first.adjective or second.adjective:
        score = 0.75 * score + 0.25 * _near("adjective", first.adjective, second.adjective)
    if first.clause or second.clause:
        inner = _near_actions(first.clause, second.clause) if first.clause and second.clause else 0.0
        score = 0.75 * score + 0.25 * inner
    return score


def _near_actions(first: Action, second: Action) -> float:
    parts = [(3.0, _near("verb", first.verb, second.verb))]
    if first.object or second.object:
        parts.append((3.0, _near_phrases(first.object, second.object)))
    for kind in ("place", "time"):
        one, other = getattr(first, kind), getattr(second, kind)
        if one or other:
            parts.append((1.0, _near(kind, one, other)))
    score = sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)
    return score if first.negated == second.negated else 0.5 * score


def likeness(first: Scene, second: Scene) -> float:
    """Overlap of meaning from 0 to 5: subject, verb and object weigh most, circumstances less, a negation halves."""
    return 5.0 * (
        0.35 * _near_phrases(first.subject, second.subject) + 0.65 * _near_actions(first.action, second.action)
    )


_EDITS = ("synonym", "negate", *_CHANGES)


def sentence_pair(draw: Draw, depth: int, edits: tuple[int, ...]) -> tuple[str, str, float]:
    """Two sentences and their likeness."""
    first = draw_fact(draw, depth)
    turn = draw.chance()
    if turn < 0.12:
        second = draw_fact(draw, depth)
    elif turn < 0.2:
        second = swap(first)
    else:
        second = edit(draw, first, _EDITS, draw.pick(edits))
        if draw.one_in(0.3):
            other = draw_fact(draw, depth)
            second = (
                second._replace(action=other.action) if draw.one_in(0.5) else second._replace(subject=other.subject)
            )
    return f"{say(draw, first)} .", f"{say(draw, second)} .", likeness(first, second)
