"""Pairs of texts: inference (mini-mnli, mini-qnli) and similarity (mini-qqp, mini-stsb).

The second text of a pair is the first scene after some edits, and the label is computed from the two meanings.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from scala_lab.data.synthetic import grammar
from scala_lab.data.synthetic.grammar import Action, Phrase, Rng, Scene, canonical

Numbers = Sequence[int]  # one of which is drawn
Pair = tuple[str, str, int]  # of texts, with its label
P = TypeVar("P", Phrase, Action)

_PREMISE_QUANTIFIERS = ("some", "some", "every", "every", "no", "no", "most", "not every")
_TRIES = 6  # hypotheses tried on one premise before another is drawn


def premise_and_hypothesis(rng: Rng, depths: Numbers, edits: Numbers, label: int) -> Pair:
    """Draw two statements of which the second stands to the first as the label says."""
    while True:
        first = draw_scene(rng, rng.choice(depths))
        for _ in range(_TRIES):
            if rng.bernoulli(0.06):
                second = swap(first)
                relation = grammar.NEUTRAL if second is not first else grammar.ENTAILMENT
            else:
                second = edit(rng, first, grammar.EDITS["inference"], rng.choice(edits))
                relation = infer(first, second)
            if relation == label:
                return *_word_sentences(rng, first, second), label


def question_and_sentence(rng: Rng, depths: Numbers, clauses: Numbers, edits: Numbers, label: int) -> Pair:
    """Draw a question and a sentence of one or more facts that answers it (label 0) or does not (1)."""
    while True:
        facts = [draw_fact(rng, rng.choice(depths)) for _ in range(rng.choice(clauses))]
        fact = rng.choice(facts)
        slot = rng.choice(("who", "where", "when") if fact.action.object is None else ("who", "what", "where", "when"))
        question = _draw_question(rng, fact, slot, rng.bernoulli(0.4), rng.choice(edits))
        if len(facts) > 1 and rng.bernoulli(0.25):
            question = question._replace(subject=rng.choice(facts).subject)
        if any(answers(fact, question, slot) for fact in facts) == (label == 0):
            conjunction = rng.choice((" and ", " , while ", " before "))
            sentence = conjunction.join(grammar.word_statement(rng, fact) for fact in facts)
            return grammar.word_question(rng, question, slot), f"{sentence} .", label


def question_pair(rng: Rng, edits: Numbers, label: int) -> Pair:
    """Draw two questions, usually of this label, and their label: 1 where they ask the same in other words."""
    first = draw_fact(rng, 0)
    slots = ["who", "where", "when", "how", "may", "why"] + ["what"] * (first.action.object is not None)
    slot = second_slot = rng.choice(slots)
    second = edit(rng, first, "synonym", 3)
    if label == 0:
        u = rng.random()
        if u < 0.15:
            second_slot = rng.choice(slots)
        elif u < 0.3:
            second = swap(second)
        else:
            second = edit(rng, second, grammar.EDITS["change"], rng.choice(edits))
    first, second = _without_slot(first, slot), _without_slot(second, second_slot)
    same = slot == second_slot and grammar.relate_scenes(first, second) == (grammar.EQUAL, grammar.EQUAL)
    return grammar.word_question(rng, first, slot), grammar.word_question(rng, second, second_slot), int(same)


def sentence_pair(rng: Rng, depth: int, edits: Numbers) -> tuple[str, str, float]:
    """Draw two sentences and their similarity."""
    first = draw_fact(rng, depth)
    u = rng.random()
    if u < 0.12:
        second = draw_fact(rng, depth)
    elif u < 0.2:
        second = swap(first)
    else:
        second = edit(rng, first, f"synonym negate {grammar.EDITS['change']}", rng.choice(edits))
        if rng.bernoulli(0.3):
            other = draw_fact(rng, depth)
            part = "action" if rng.bernoulli(0.5) else "subject"
            second = second._replace(**{part: getattr(other, part)})
    return *_word_sentences(rng, first, second), similarity(first, second)


def _word_sentences(rng: Rng, first: Scene, second: Scene) -> tuple[str, str]:
    return f"{grammar.word_statement(rng, first)} .", f"{grammar.word_statement(rng, second)} ."


def draw_scene(rng: Rng, depth: int) -> Scene:
    """Draw a quantified statement."""
    return Scene(
        rng.choice(_PREMISE_QUANTIFIERS), grammar.draw_phrase(rng, True, depth), grammar.draw_action(rng, depth)
    )


def draw_fact(rng: Rng, depth: int) -> Scene:
    """Draw a statement about one being: `the old painter sold a car in the park`."""
    action = grammar.draw_action(rng, depth, circumstances=0.5, negations=0.12, transitive=0.85)
    return Scene("the", grammar.draw_phrase(rng, True, depth), action)


def infer(first: Scene, second: Scene) -> int:
    """Judge whether a quantified statement follows from the first: ENTAILMENT, NEUTRAL or CONTRADICTION."""
    return grammar.judge(first.quantifier, second.quantifier, *grammar.relate_scenes(first, second))


def answers(fact: Scene, question: Scene, slot: str) -> bool:
    """Whether a fact fills the slot of a question and implies what the question presupposes."""
    action, supposed = fact.action, question.action
    filler = {"who": fact.subject, "what": action.object, "where": action.place, "when": action.time}[slot]
    if action.negated or filler is None:
        return False
    missing = Phrase("")
    relations = {
        "verb": grammar.relate_words("verb", action.verb, supposed.verb),
        "who": grammar.relate_phrases(fact.subject, question.subject),
        "what": grammar.relate_phrases(action.object or missing, supposed.object or missing),
        "where": grammar.relate_words("place", action.place, supposed.place),
        "when": grammar.relate_words("time", action.time, supposed.time),
    }
    return all(relations[part] in (grammar.EQUAL, grammar.WITHIN) for part in relations if part != slot)


def _draw_question(rng: Rng, fact: Scene, slot: str, wrong: bool, edits: int) -> Scene:
    """Draw what a question about the fact presupposes: the fact reworded, with the slot left open."""
    scene = edit(rng, fact._replace(action=fact.action._replace(negated=False)), grammar.EDITS["question"], edits)
    if wrong:
        scene = swap(scene) if rng.bernoulli(0.25) else edit(rng, scene, grammar.EDITS["wrong question"], 1)
    action = scene.action
    if slot == "where" or rng.bernoulli(0.4):
        action = action._replace(place=None)
    if slot == "when" or rng.bernoulli(0.4):
        action = action._replace(time=None)
    return scene._replace(action=action)


def _without_slot(scene: Scene, slot: str) -> Scene:
    """Blank the slot that a question asks for, and the negation, so that they do not count as a difference."""
    blank: dict[str, Any] = {"where": {"place": None}, "when": {"time": None}, "what": {"object": Phrase("object")}}
    action = scene.action._replace(negated=False, **blank.get(slot, {}))
    return scene._replace(action=action, subject=Phrase("person") if slot == "who" else scene.subject)


def similarity(first: Scene, second: Scene) -> float:
    """Score the overlap of meaning from 0 to 5: subject, verb and object weigh most, a negation halves."""
    subjects = _phrase_similarity(first.subject, second.subject)
    return 5.0 * (0.35 * subjects + 0.65 * _action_similarity(first.action, second.action))


def _word_similarity(kind: str, first: str | None, second: str | None) -> float:
    """Score 1 for synonyms, 0.7 for a hypernym, 0.4 for siblings, 0 for unrelated words."""
    if first is None or second is None:
        return float(first is second)
    relation = grammar.relate_words(kind, first, second)
    if relation == grammar.EQUAL:
        return 1.0
    if relation in (grammar.WITHIN, grammar.AROUND):
        return 0.7
    parents = grammar.PARENT.get(kind, {})
    first, second = canonical(kind, first), canonical(kind, second)
    return 0.4 if parents.get(first, first) == parents.get(second, second) else 0.0


def _phrase_similarity(first: Phrase | None, second: Phrase | None) -> float:
    if first is None or second is None:
        return float(first is second)
    score = _word_similarity("noun", first.noun, second.noun)
    if first.adjective or second.adjective:
        score = 0.75 * score + 0.25 * _word_similarity("adjective", first.adjective, second.adjective)
    if first.clause or second.clause:
        inner = _action_similarity(first.clause, second.clause) if first.clause and second.clause else 0.0
        score = 0.75 * score + 0.25 * inner
    return score


def _action_similarity(first: Action, second: Action) -> float:
    parts = [(3.0, _word_similarity("verb", first.verb, second.verb))]
    if first.object or second.object:
        parts.append((3.0, _phrase_similarity(first.object, second.object)))
    for kind, place, other in (("place", first.place, second.place), ("time", first.time, second.time)):
        if place or other:
            parts.append((1.0, _word_similarity(kind, place, other)))
    score = sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)
    return score if first.negated == second.negated else 0.5 * score


def edit(rng: Rng, scene: Scene, names: str, times: int) -> Scene:
    """Apply some of the named edits one after the other; an edit that finds nothing to change does nothing."""
    for _ in range(times):
        scene = _EDITS[rng.choice(names.split())](rng, scene)
    return scene


def swap(scene: Scene) -> Scene:
    """Exchange subject and object; a scene without a living object stays."""
    patient = scene.action.object
    if patient is None or patient.noun not in grammar.LIVING_NOUNS:
        return scene
    return scene._replace(subject=patient, action=scene.action._replace(object=scene.subject))


def _substitute(table: dict[str, dict[str, list[str]]], kind: str, rng: Rng, part: P) -> P:
    """Replace the noun, adjective or verb of a part of a scene by a word that the table lists for it or its synonym."""
    word = getattr(part, kind)
    others: Sequence[Any] | None = table[kind].get(word) or table[kind].get(canonical(kind, word))
    return part._replace(**{kind: rng.choice(others)}) if others else part


def _edit_phrase(change: Callable[[Rng, Phrase], Phrase], rng: Rng, scene: Scene) -> Scene:
    """Change the subject, the object, or a phrase inside their relative clauses."""

    def descend(phrase: Phrase) -> Phrase:
        clause = phrase.clause
        if clause is not None and clause.object is not None and rng.bernoulli(0.4):
            return phrase._replace(clause=clause._replace(object=descend(clause.object)))
        return change(rng, phrase)

    if scene.action.object is None or rng.bernoulli(0.5):
        return scene._replace(subject=descend(scene.subject))
    return scene._replace(action=scene.action._replace(object=descend(scene.action.object)))


def _edit_verb(table: dict[str, dict[str, list[str]]], rng: Rng, scene: Scene) -> Scene:
    """Change the verb of the subject's relative clause or of the statement."""
    clause = scene.subject.clause
    if clause is not None and rng.bernoulli(0.4):
        return scene._replace(subject=scene.subject._replace(clause=_substitute(table, "verb", rng, clause)))
    return scene._replace(action=_substitute(table, "verb", rng, scene.action))


def _edit_synonym(rng: Rng, scene: Scene) -> Scene:
    if rng.bernoulli(0.5):
        return scene._replace(action=_substitute(grammar.SYNONYMS, "verb", rng, scene.action))
    return _edit_phrase(_synonym_phrase, rng, scene)


def _synonym_phrase(rng: Rng, phrase: Phrase) -> Phrase:
    return _substitute(grammar.SYNONYMS, "adjective", rng, _substitute(grammar.SYNONYMS, "noun", rng, phrase))


def _add_adjective(rng: Rng, phrase: Phrase) -> Phrase:
    return phrase if phrase.adjective else phrase._replace(adjective=grammar.draw_adjective(rng, phrase.noun))


def _drop_modifier(rng: Rng, phrase: Phrase) -> Phrase:
    if phrase.clause is not None and rng.bernoulli(0.5):
        return phrase._replace(clause=None)
    return phrase._replace(adjective=None)


def _edit_circumstance(rng: Rng, scene: Scene) -> Scene:
    """Drop, widen, change or add the place or the time."""
    kind = rng.choice(("place", "time"))
    old: str | None = getattr(scene.action, kind)
    new: Any = rng.choice(grammar.PLACES if kind == "place" else grammar.TIMES)
    if old is not None:
        new = rng.choice((None, None, grammar.PARENT[kind].get(old, old), new))
    return scene._replace(action=scene.action._replace(**{kind: new}))


_EDITS: dict[str, Callable[[Rng, Scene], Scene]] = {
    "synonym": _edit_synonym,
    "hypernym": partial(_edit_phrase, partial(_substitute, grammar.HYPERNYMS, "noun")),
    "hyponym": partial(_edit_phrase, partial(_substitute, grammar.CHILDREN, "noun")),
    "sibling": partial(_edit_phrase, partial(_substitute, grammar.SIBLINGS, "noun")),
    "add_adjective": partial(_edit_phrase, _add_adjective),
    "drop_modifier": partial(_edit_phrase, _drop_modifier),
    "opposite_adjective": partial(_edit_phrase, partial(_substitute, grammar.OPPOSITES, "adjective")),
    "verb_hypernym": partial(_edit_verb, grammar.HYPERNYMS),
    "verb_sibling": partial(_edit_verb, grammar.SIBLINGS),
    "opposite_verb": partial(_edit_verb, grammar.OPPOSITES),
    "circumstance": _edit_circumstance,
    "negate": lambda rng, scene: scene._replace(action=scene.action._replace(negated=not scene.action.negated)),
    "quantifier": lambda rng, scene: scene._replace(quantifier=rng.choice(grammar.QUANTIFIERS)),
}
