"""Small changes to a scene: the ways in which the two sides of a pair come to differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scala_lab.tasks.embedded.relations import QUANTIFIERS
from scala_lab.tasks.embedded.scenes import (
    LIVING_NOUNS,
    Action,
    Phrase,
    Scene,
    adjective_for,
    draw_place,
    draw_time,
)
from scala_lab.tasks.embedded.words import CHILDREN, OPPOSITES, PARENT, SYNONYMS, Draw, leader

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
