"""Pairs of texts: inference (mini-mnli, mini-qnli) and similarity (mini-qqp, mini-stsb).

Small changes to a scene: the ways in which the two sides of a pair come to differ.

Does the second follow from the first: mini-mnli and mini-qnli.

How much two texts mean the same: mini-qqp (the same question or not) and mini-stsb (a score).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scala_lab.data.synthetic.scenes import (
    AROUND,
    ENTAILMENT,
    EQUAL,
    LIVING_NOUNS,
    NEUTRAL,
    QUANTIFIERS,
    WITHIN,
    Action,
    Phrase,
    Scene,
    adjective_for,
    ask,
    circumstances,
    draw_action,
    draw_phrase,
    draw_place,
    draw_time,
    judge,
    relate_actions,
    relate_phrases,
    relate_words,
    say,
)
from scala_lab.data.synthetic.words import CHILDREN, OPPOSITES, PARENT, SYNONYMS, Draw, article, leader

Edit = Callable[[Draw, Scene], Scene]


def _on_some_phrase(draw: Draw, scene: Scene, change: Callable[[Draw, Phrase], Phrase]) -> Scene:
    """Change the subject, the object, or a phrase inside their relative clauses."""
    if scene.action.object is None or draw.one_in(0.5):
        return scene._replace(subject=_inside(draw, scene.subject, change))
    return scene._replace(action=scene.action._replace(object=_inside(draw, scene.action.object, change)))


def _inside(draw: Draw, phrase: Phrase, change: Callable[[Draw, Phrase], Phrase]) -> Phrase:
    clause = phrase.clause
    if clause is not None and clause.object is not None and draw.one_in(0.4):
        return phrase._replace(clause=clause._replace(object=_inside(draw, clause.object, change)))
    return change(draw, phrase)


def _another(draw: Draw, words: Sequence[str], word: str) -> str:
    return draw.pick(words) if words else word


def _noun(table: Callable[[str], Sequence[str]]) -> Edit:
    def change(draw: Draw, phrase: Phrase) -> Phrase:
        return phrase._replace(noun=_another(draw, table(leader("noun", phrase.noun)), phrase.noun))

    return lambda draw, scene: _on_some_phrase(draw, scene, change)


def _verb(table: Callable[[str], Sequence[str]]) -> Edit:
    def change(draw: Draw, action: Action) -> Action:
        return action._replace(verb=_another(draw, table(leader("verb", action.verb)), action.verb))

    def edit(draw: Draw, scene: Scene) -> Scene:
        clause = scene.subject.clause
        if clause is not None and draw.one_in(0.4):
            return scene._replace(subject=scene.subject._replace(clause=change(draw, clause)))
        return scene._replace(action=change(draw, scene.action))

    return edit


def _siblings(kind: str) -> Callable[[str], Sequence[str]]:
    return lambda word: [other for other in CHILDREN[kind].get(PARENT[kind].get(word, ""), ()) if other != word]


def _parent(kind: str) -> Callable[[str], Sequence[str]]:
    return lambda word: [PARENT[kind][word]] if word in PARENT[kind] else []


def _synonym(draw: Draw, scene: Scene) -> Scene:
    def phrase(draw: Draw, old: Phrase) -> Phrase:
        noun = _another(draw, SYNONYMS["noun"].get(old.noun, ()), old.noun)
        adjective = old.adjective and _another(draw, SYNONYMS["adjective"].get(old.adjective, ()), old.adjective)
        return old._replace(noun=noun, adjective=adjective)

    if draw.one_in(0.5):
        verb = scene.action.verb
        return scene._replace(action=scene.action._replace(verb=_another(draw, SYNONYMS["verb"].get(verb, ()), verb)))
    return _on_some_phrase(draw, scene, phrase)


def _add_adjective(draw: Draw, scene: Scene) -> Scene:
    def change(draw: Draw, phrase: Phrase) -> Phrase:
        return phrase if phrase.adjective else phrase._replace(adjective=adjective_for(draw, phrase.noun))

    return _on_some_phrase(draw, scene, change)


def _drop_modifier(draw: Draw, scene: Scene) -> Scene:
    def change(draw: Draw, phrase: Phrase) -> Phrase:
        if phrase.clause is not None and draw.one_in(0.5):
            return phrase._replace(clause=None)
        return phrase._replace(adjective=None)

    return _on_some_phrase(draw, scene, change)


def _opposite_adjective(draw: Draw, scene: Scene) -> Scene:
    def change(draw: Draw, phrase: Phrase) -> Phrase:
        if phrase.adjective is None:
            return phrase
        return phrase._replace(adjective=draw.pick(OPPOSITES["adjective"][leader("adjective", phrase.adjective)]))

    return _on_some_phrase(draw, scene, change)


def _circumstance(draw: Draw, scene: Scene) -> Scene:
    """Drop, widen, change or add where or when."""
    action = scene.action
    kind = draw.pick(("place", "time"))
    old = getattr(action, kind)
    new = draw_place(draw) if kind == "place" else draw_time(draw)
    if old is not None:
        new = draw.pick((None, None, PARENT[kind].get(old, old), new))
    return scene._replace(action=action._replace(place=new) if kind == "place" else action._replace(time=new))


def _negate(draw: Draw, scene: Scene) -> Scene:
    return scene._replace(action=scene.action._replace(negated=not scene.action.negated))


def _quantifier(draw: Draw, scene: Scene) -> Scene:
    return scene._replace(quantifier=draw.pick(QUANTIFIERS))


def swap(scene: Scene) -> Scene:
    """The object does it to the subject; a scene whose object is no living being stays."""
    what = scene.action.object
    if what is None or what.noun not in LIVING_NOUNS:
        return scene
    return scene._replace(subject=what, action=scene.action._replace(object=scene.subject))


EDITS: dict[str, Edit] = {
    "synonym": _synonym,
    "hypernym": _noun(_parent("noun")),
    "hyponym": _noun(lambda word: CHILDREN["noun"].get(word, ())),
    "sibling": _noun(_siblings("noun")),
    "add adjective": _add_adjective,
    "drop modifier": _drop_modifier,
    "opposite adjective": _opposite_adjective,
    "wider verb": _verb(_parent("verb")),
    "sibling verb": _verb(_siblings("verb")),
    "opposite verb": _verb(lambda word: OPPOSITES["verb"].get(word, ())),
    "circumstance": _circumstance,
    "negate": _negate,
    "quantifier": _quantifier,
}
"""By name. An edit that finds nothing to change returns the scene as it was."""


def edit(draw: Draw, scene: Scene, names: Sequence[str], times: int) -> Scene:
    """Apply some of the named edits, one after the other."""
    for _ in range(times):
        scene = EDITS[draw.pick(names)](draw, scene)
    return scene


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
