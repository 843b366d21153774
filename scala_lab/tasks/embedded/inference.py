"""Does the second follow from the first: mini-mnli and mini-qnli."""

from __future__ import annotations

from scala_lab.tasks.embedded.edits import edit, swap
from scala_lab.tasks.embedded.relations import ENTAILMENT, EQUAL, NEUTRAL, WITHIN, judge
from scala_lab.tasks.embedded.scenes import (
    Phrase,
    Scene,
    draw_action,
    draw_phrase,
    relate_actions,
    relate_phrases,
    relate_words,
)
from scala_lab.tasks.embedded.wording import ask, say
from scala_lab.tasks.embedded.words import Draw

_INFERENCE_EDITS = (
    "synonym",
    "hypernym",
    "hypernym",
    "hyponym",
    "sibling",
    "add adjective",
    "drop modifier",
    "drop modifier",
    "opposite adjective",
    "wider verb",
    "sibling verb",
    "opposite verb",
    "circumstance",
    "circumstance",
    "negate",
    "quantifier",
    "quantifier",
)
_USUAL = ("some", "some", "every", "every", "no", "no", "most", "not every")
"""Quantifiers of premises, by how often they come."""
_QUESTION_EDITS = ("synonym", "hypernym", "drop modifier", "wider verb", "circumstance")
_WRONG_EDITS = (
    "sibling",
    "hyponym",
    "add adjective",
    "opposite verb",
    "sibling verb",
    "circumstance",
    "opposite adjective",
)
_SLOTS = ("who", "what", "where", "when")
_TRIES = 6
"""Hypotheses tried on one premise before another is drawn."""


def draw_scene(draw: Draw, depth: int) -> Scene:
    """A quantified statement."""
    return Scene(draw.pick(_USUAL), draw_phrase(draw, True, depth), draw_action(draw, depth))


def draw_fact(draw: Draw, depth: int) -> Scene:
    """A statement about one being: `the old painter sold a car in the park`."""
    action = draw_action(draw, depth, circumstances=0.5, negations=0.12, transitive=0.85)
    return Scene("the", draw_phrase(draw, True, depth), action)


def follow(first: Scene, second: Scene) -> int:
    """ENTAILMENT, NEUTRAL or CONTRADICTION between two quantified statements."""
    return judge(
        first.quantifier,
        second.quantifier,
        relate_phrases(first.subject, second.subject),
        relate_actions(first.action, second.action),
    )


def premise_and_hypothesis(draw: Draw, depths: tuple[int, ...], edits: tuple[int, ...], label: int) -> tuple[str, str]:
    """Two statements of which the second stands to the first as the label says."""
    while True:
        first = draw_scene(draw, draw.pick(depths))
        for _ in range(_TRIES):
            if draw.one_in(0.06):
                second = swap(first)
                found = NEUTRAL if second is not first else ENTAILMENT
            else:
                second = edit(draw, first, _INFERENCE_EDITS, draw.pick(edits))
                found = follow(first, second)
            if found == label:
                return f"{say(draw, first)} .", f"{say(draw, second)} ."


def answers(fact: Scene, question: Scene, asked: str) -> bool:
    """Whether a fact fills the asked slot of a question and is within what the question supposes."""
    action, wanted = fact.action, question.action
    if action.negated:
        return False
    filled = {"who": True, "what": action.object, "where": action.place, "when": action.time}[asked]
    if filled is None:
        return False
    parts = [relate_words("verb", action.verb, wanted.verb)]
    if asked != "who":
        parts.append(relate_phrases(fact.subject, question.subject))
    if asked != "what":
        missing = Phrase("")
        parts.append(relate_phrases(action.object or missing, wanted.object or missing))
    if asked != "where":
        parts.append(relate_words("place", action.place, wanted.place))
    if asked != "when":
        parts.append(relate_words("time", action.time, wanted.time))
    return all(part in (EQUAL, WITHIN) for part in parts)


def _question(draw: Draw, fact: Scene, asked: str, wrong: bool, edits: int) -> Scene:
    """What a question about the fact supposes: the fact with the asked slot left open, reworded."""
    scene = edit(draw, fact._replace(action=fact.action._replace(negated=False)), _QUESTION_EDITS, edits)
    if wrong:
        scene = swap(scene) if draw.one_in(0.25) else edit(draw, scene, _WRONG_EDITS, 1)
    action = scene.action
    if asked == "where" or draw.one_in(0.4):
        action = action._replace(place=None)
    if asked == "when" or draw.one_in(0.4):
        action = action._replace(time=None)
    return scene._replace(action=action)


def question_and_sentence(
    draw: Draw, depths: tuple[int, ...], clauses: tuple[int, ...], edits: tuple[int, ...], label: int
) -> tuple[str, str]:
    """A question and a sentence of one or more facts that answers it (label 0) or does not (1)."""
    while True:
        facts = [draw_fact(draw, draw.pick(depths)) for _ in range(draw.pick(clauses))]
        about = draw.pick(facts)
        asked = draw.pick(_SLOTS if about.action.object is not None else ("who", "where", "when"))
        question = _question(draw, about, asked, draw.one_in(0.4), draw.pick(edits))
        if len(facts) > 1 and draw.one_in(0.25):
            question = question._replace(subject=draw.pick(facts).subject)
        if any(answers(fact, question, asked) for fact in facts) == (label == 0):
            sentence = draw.pick((" and ", " , while ", " before ")).join(say(draw, fact) for fact in facts)
            return ask(draw, question, asked), f"{sentence} ."
