"""From scenes to sentences and questions, in active or passive voice."""

from __future__ import annotations

from scala_lab.tasks.embedded.scenes import Action, Phrase, Scene
from scala_lab.tasks.embedded.words import PARTICIPLE, PAST, PEOPLE, Draw, article, plural

_DETERMINERS: dict[str, tuple[tuple[str, bool], ...]] = {
    "every": (("every", False), ("each", False), ("all", True)),
    "some": (("a", False), ("some", True), ("at least one", False)),
    "no": (("no", False), ("not a single", False)),
    "most": (("most", True), ("more than half of the", True)),
    "not every": (("not every", False), ("not all", True)),
    "the": (("the", False),),
}
"""Wordings of a quantifier, each with whether the noun is plural."""


def _phrase(draw: Draw, phrase: Phrase, many: bool = False) -> str:
    noun = plural(phrase.noun) if many else phrase.noun
    text = noun if phrase.adjective is None else f"{phrase.adjective} {noun}"
    if phrase.clause is not None:
        text += (" who " if phrase.noun in PEOPLE else " that ") + _active(draw, phrase.clause)
    return text


def _with_article(draw: Draw, phrase: Phrase) -> str:
    text = _phrase(draw, phrase)
    return f"the {text}" if draw.one_in(0.4) else f"{article(text)} {text}"


def _quantified(draw: Draw, quantifier: str, phrase: Phrase) -> str:
    determiner, many = draw.pick(_DETERMINERS[quantifier])
    text = _phrase(draw, phrase, many)
    return f"{article(text) if determiner == 'a' else determiner} {text}"


def circumstances(draw: Draw, action: Action) -> str:
    """Where and when, in either order, with a leading blank; empty where neither is told."""
    place = "" if action.place is None else f" {place_words(action.place)}"
    time = "" if action.time is None else f" {time_words(action.time)}"
    return place + time if draw.one_in(0.6) else time + place


def place_words(place: str) -> str:
    """`in the park`, or the kind of place as it stands."""
    return place if place.endswith("doors") else f"in the {place}"


def time_words(time: str) -> str:
    """`on monday`, or the kind of day as it stands."""
    return time if time.startswith("on ") else f"on {time}"


def _done(action: Action) -> str:
    return f"did not {action.verb}" if action.negated else PAST[action.verb]


def _active(draw: Draw, action: Action) -> str:
    what = "" if action.object is None else f" {_with_article(draw, action.object)}"
    return f"{_done(action)}{what}{circumstances(draw, action)}"


def _passive(draw: Draw, action: Action, by: str) -> str:
    assert action.object is not None
    was = "was not" if action.negated else "was"
    return f"{_with_article(draw, action.object)} {was} {PARTICIPLE[action.verb]} by {by}{circumstances(draw, action)}"


def say(draw: Draw, scene: Scene, passives: float = 0.3) -> str:
    """One wording of a statement, without the full stop.

    Statements whose passive would be ambiguous (a negation or `not every` under a quantifier, a relative clause
    before the circumstances) stay active.
    """
    subject = _quantified(draw, scene.quantifier, scene.subject)
    action = scene.action
    plain = scene.quantifier == "the" or (not action.negated and scene.quantifier != "not every")
    if action.object is not None and plain and scene.subject.clause is None and draw.one_in(passives):
        return _passive(draw, action, subject)
    return f"{subject} {_active(draw, action)}"


def ask(draw: Draw, scene: Scene, asked: str) -> str:
    """One wording of the question for `asked`: who, what, where or when."""
    action = scene.action
    around = circumstances(draw, action)
    subject = f"the {_phrase(draw, scene.subject)}"
    what = None if action.object is None else _with_article(draw, action.object)
    if asked == "who":
        if what is not None and draw.one_in(0.3):
            return f"by whom was {what} {PARTICIPLE[action.verb]}{around} ?"
        return f"{draw.pick(('who', 'which one'))} {PAST[action.verb]}{'' if what is None else ' ' + what}{around} ?"
    if asked == "what":
        if draw.one_in(0.3):
            return f"what was {PARTICIPLE[action.verb]} by {subject}{around} ?"
        return f"what did {subject} {action.verb}{around} ?"
    frame = draw.pick({"where": ("where", "in which place"), "when": ("when", "on which day")}[asked])
    if what is not None and draw.one_in(0.3):
        return f"{frame} was {what} {PARTICIPLE[action.verb]} by {subject}{around} ?"
    return f"{frame} did {subject} {action.verb}{'' if what is None else ' ' + what}{around} ?"
